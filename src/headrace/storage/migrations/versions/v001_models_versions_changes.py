"""Models, versions and changes."""

import sqlalchemy as sa
from alembic import op

revision = "001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "headrace_models",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("declaration", sa.String, nullable=False),
        sa.Column("active", sa.Integer),
        sa.Column("previous", sa.Integer),
    )
    op.create_table(
        "headrace_versions",
        sa.Column("server", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("is_declared", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text),
    )
    op.create_table(
        "headrace_changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("previous", sa.String),
        sa.Column("active", sa.String),
        sa.Column("who", sa.String, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("detail", sa.Text),
    )
    op.create_index("headrace_changes_of_server", "headrace_changes", ["server", "id"])
