"""Brings a database of an older release to head. The one file that imports alembic for a server."""

import logging
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

log = structlog.get_logger("headrace.storage")


def upgrade(connection: Connection) -> None:
    """Take every step that is missing, within the transaction that the connection is in."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # ours is one line for all steps
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    log.info("store.upgraded", schema=ScriptDirectory.from_config(config).get_current_head())


def known_revisions() -> set[str]:
    scripts = ScriptDirectory.from_config(_config())
    return {script.revision for script in scripts.walk_revisions()}


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).parent)
    config.set_main_option("script_location", folder.replace("%", "%%"))  # as ConfigParser reads
    return config
