"""Statistics that hold however often they are looked at. Knows no model, no request, no clock."""
