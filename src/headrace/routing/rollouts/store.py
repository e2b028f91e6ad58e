"""Rollouts and their decisions as rows of one server. Decides nothing.

Every method is one transaction and blocks.
"""

from collections import defaultdict
from typing import Any

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, Row, Table, delete, insert, select, update

from headrace.errors import HeadraceError
from headrace.routing.rollouts.decision import OVER, Decision, Numbers
from headrace.routing.rollouts.record import Record
from headrace.storage.database import open_database, transaction
from headrace.storage.tables import rollout_decisions, rollouts

log = structlog.get_logger("headrace.routing")

MAX_OVER = 100  # of one server; what runs is kept beyond it

Stored = tuple[Record, list[Decision]]

_NUMBERS = msgspec.json.Decoder(dict[str, Numbers])


class RolloutStore:
    """The rows of one server, which its address names."""

    def __init__(self, database_url: str, server: str) -> None:
        self._engine = open_database(database_url)
        self._server = server

    def read(self) -> list[Stored]:
        """The oldest first."""
        with transaction(self._engine) as connection:
            decisions = self._read_decisions(connection)
            rows = connection.execute(
                select(rollouts).where(self._ours(rollouts)).order_by(rollouts.c.created_at)
            )
            records = [record for row in rows if (record := _record(row)) is not None]
        return [(record, decisions[record.id]) for record in records]

    def save(self, record: Record, decisions: list[Decision]) -> None:
        """Replace what is known of a rollout, and add decisions to it."""
        with transaction(self._engine) as connection:
            self._put(connection, record)
            for decision in decisions:
                self._add(connection, record.id, decision)
            self._forget_old(connection)

    def close(self) -> None:
        self._engine.dispose()

    # Parts of a transaction

    def _ours(self, table: Table) -> ColumnElement[bool]:
        return table.c.server == self._server

    def _read_decisions(self, connection: Connection) -> defaultdict[str, list[Decision]]:
        ours = self._ours(rollout_decisions)
        read = defaultdict(list)
        ordered = select(rollout_decisions).where(ours).order_by(rollout_decisions.c.id)
        for row in connection.execute(ordered):
            read[row.rollout_id].append(_decision(row))
        return read

    def _put(self, connection: Connection, record: Record) -> None:
        values = {
            "name": record.plan.name,
            "state": record.state,
            "record": msgspec.json.encode(record).decode(),
            "created_at": record.created_at,
            "ended_at": record.ended_at,
        }
        is_it = self._ours(rollouts) & (rollouts.c.id == record.id)
        if not connection.execute(update(rollouts).where(is_it).values(values)).rowcount:
            connection.execute(insert(rollouts).values(server=self._server, id=record.id, **values))

    def _add(self, connection: Connection, rollout_id: str, decision: Decision) -> None:
        connection.execute(
            insert(rollout_decisions).values(
                server=self._server,
                rollout_id=rollout_id,
                at=decision.at,
                kind=decision.kind,
                stage_percent=decision.stage_percent,
                reason=_storable(decision.reason),
                numbers=msgspec.json.encode(decision.numbers).decode(),
            )
        )

    def _forget_old(self, connection: Connection) -> None:
        is_over = self._ours(rollouts) & rollouts.c.state.in_(OVER)
        newest_first = select(rollouts.c.id).where(is_over).order_by(rollouts.c.created_at.desc())
        old = connection.execute(newest_first.offset(MAX_OVER)).scalars().all()
        for table, column in (
            (rollout_decisions, rollout_decisions.c.rollout_id),
            (rollouts, rollouts.c.id),
        ):
            connection.execute(delete(table).where(self._ours(table), column.in_(old)))


def _record(row: Row[Any]) -> Record | None:
    """None for what another release wrote; its row stays for a release that can read it."""
    try:
        return msgspec.json.decode(row.record, type=Record)
    except (msgspec.DecodeError, HeadraceError) as error:
        log.warning("rollout.unreadable", rollout_id=row.id, reason=str(error))
        return None


def _decision(row: Row[Any]) -> Decision:
    try:
        numbers = _NUMBERS.decode(row.numbers)
    except msgspec.DecodeError as error:
        log.warning("rollout.numbers_unreadable", rollout_id=row.rollout_id, reason=str(error))
        numbers = {}
    return Decision(
        at=row.at,
        kind=row.kind,
        stage_percent=row.stage_percent,
        reason=row.reason,
        numbers=numbers,
    )


def _storable(words: str) -> str:
    """A reason may quote a worker's last words, and hold what a database refuses."""
    return words.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
