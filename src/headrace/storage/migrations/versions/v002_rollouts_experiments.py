"""Rollouts with their decisions; experiments with their counts, and feedback."""

import sqlalchemy as sa
from alembic import op

revision = "002"
down_revision = "001"


def upgrade() -> None:
    op.create_table(
        "headrace_rollouts",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
    )
    op.create_index("headrace_rollouts_of_server", "headrace_rollouts", ["server", "created_at"])
    op.create_table(
        "headrace_rollout_decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("rollout_id", sa.String, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("stage_percent", sa.Double, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("numbers", sa.Text, nullable=False),
    )
    op.create_index(
        "headrace_rollout_decisions_of_rollout",
        "headrace_rollout_decisions",
        ["server", "rollout_id", "id"],
    )
    op.create_table(
        "headrace_experiments",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("conclusion", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
    )
    op.create_index(
        "headrace_experiments_of_server", "headrace_experiments", ["server", "created_at"]
    )
    op.create_table(
        "headrace_experiment_counts",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("experiment_id", sa.String, primary_key=True),
        sa.Column("variant", sa.String, primary_key=True),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_table(
        "headrace_feedback",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("request_id", sa.String, primary_key=True),
        sa.Column("experiment_id", sa.String, nullable=False),
        sa.Column("variant", sa.String, nullable=False),
        sa.Column("user_id", sa.String, nullable=False),
        sa.Column("score", sa.Double),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index(
        "headrace_feedback_of_experiment", "headrace_feedback", ["server", "experiment_id", "at"]
    )
