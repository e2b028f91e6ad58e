"""Whether a version answers, answers right, and how well."""
