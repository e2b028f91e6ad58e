"""Experiments as rows of the database. Decides nothing; every method is one transaction and blocks.

Servers may share a database: each sees its own rows.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, Row, Table, delete, insert, select

from headrace.errors import InvalidRequestError
from headrace.routing.experiments.experiment import Conclusion, Experiment, Found
from headrace.routing.experiments.known import MAX_CONCLUDED
from headrace.routing.experiments.plan import Plan
from headrace.routing.experiments.recent import RecentRequest
from headrace.routing.experiments.samples import Samples
from headrace.storage.database import open_database, transaction
from headrace.storage.tables import experiment_counts, experiments, feedback

log = structlog.get_logger("headrace.routing")


class ExperimentStore:
    """The rows of one server, which its address names."""

    def __init__(self, database_url: str, server: str) -> None:
        self._engine = open_database(database_url)
        self._server = server

    def read(self) -> list[Experiment]:
        """All that there are, the oldest first."""
        ordered = select(experiments).where(self._ours(experiments))
        with transaction(self._engine) as connection:
            counts = self._read_counts(connection)
            rows = connection.execute(ordered.order_by(experiments.c.created_at)).all()
        read = (_experiment(row, counts[row.id]) for row in rows)
        return [experiment for experiment in read if experiment is not None]

    def save(self, experiment: Experiment) -> None:
        """Add it, or replace what was known of it; one that is concluded needs no counts."""
        with transaction(self._engine) as connection:
            connection.execute(delete(experiments).where(self._is(experiment.experiment_id)))
            connection.execute(insert(experiments).values(self._row(experiment)))
            if experiment.conclusion is not None:
                self._forget_counts(connection, experiment.experiment_id)
                self._forget_old(connection)

    def save_counts(self, experiment_id: str, samples: Mapping[str, Samples]) -> None:
        """Replace what was known of its variants."""
        rows = [
            {
                "server": self._server,
                "experiment_id": experiment_id,
                "variant": model_id,
                "data": msgspec.json.encode(each).decode(),
            }
            for model_id, each in samples.items()
        ]
        with transaction(self._engine) as connection:
            self._forget_counts(connection, experiment_id)
            connection.execute(insert(experiment_counts), rows)

    def take_requests(self) -> list[RecentRequest]:
        """Those that were saved, the oldest first; they are not saved any more.

        Feedback that comes from now on is known to nobody after a crash, and must not count twice.
        """
        with transaction(self._engine) as connection:
            ours = self._ours(feedback)
            rows = connection.execute(select(feedback).where(ours).order_by(feedback.c.at)).all()
            connection.execute(delete(feedback).where(ours))
        return [_request(row) for row in rows]

    def save_requests(self, requests: Sequence[RecentRequest]) -> None:
        with transaction(self._engine) as connection:
            connection.execute(delete(feedback).where(self._ours(feedback)))
            if requests:
                connection.execute(insert(feedback), [self._request_row(each) for each in requests])

    def close(self) -> None:
        self._engine.dispose()

    # Rows of this server

    def _ours(self, table: Table) -> ColumnElement[bool]:
        return table.c.server == self._server

    def _is(self, experiment_id: str) -> ColumnElement[bool]:
        return self._ours(experiments) & (experiments.c.id == experiment_id)

    def _row(self, experiment: Experiment) -> dict[str, Any]:
        end = experiment.conclusion
        return {
            "server": self._server,
            "id": experiment.experiment_id,
            "name": experiment.plan.name,
            "spec": msgspec.json.encode(_Begun(experiment.plan, experiment.active)).decode(),
            "state": "running" if end is None else "concluded",
            "conclusion": msgspec.json.encode(_End(experiment.found, end)).decode(),
            "created_at": experiment.started_at,
            "ended_at": None if end is None else end.at,
        }

    def _request_row(self, request: RecentRequest) -> dict[str, Any]:
        row = asdict(request)
        row["variant"] = row.pop("model_id")
        row["user_id"] = row.pop("user").replace(
            "\0", "\N{REPLACEMENT CHARACTER}"
        )  # as PostgreSQL asks
        return {"server": self._server, **row}

    # Parts of a transaction

    def _read_counts(self, connection: Connection) -> defaultdict[str, dict[str, str]]:
        ours = select(experiment_counts).where(self._ours(experiment_counts))
        read = defaultdict[str, dict[str, str]](dict)
        for row in connection.execute(ours):
            read[row.experiment_id][row.variant] = row.data
        return read

    def _forget_counts(self, connection: Connection, experiment_id: str) -> None:
        is_its = experiment_counts.c.experiment_id == experiment_id
        connection.execute(delete(experiment_counts).where(self._ours(experiment_counts), is_its))

    def _forget_old(self, connection: Connection) -> None:
        is_over = self._ours(experiments) & (experiments.c.state == "concluded")
        newest_first = select(experiments.c.ended_at).where(is_over)
        newest_first = newest_first.order_by(experiments.c.ended_at.desc())
        too_old = newest_first.offset(MAX_CONCLUDED).limit(1).scalar_subquery()
        connection.execute(delete(experiments).where(is_over, experiments.c.ended_at <= too_old))


class _Begun(msgspec.Struct, frozen=True):
    plan: Plan
    active: str | None


class _End(msgspec.Struct, frozen=True):
    found: Found | None
    conclusion: Conclusion | None


def _experiment(row: Row[Any], counts: Mapping[str, str]) -> Experiment | None:
    """None for what another release wrote; its row stays for a release that can read it."""
    try:
        begun = msgspec.json.decode(row.spec, type=_Begun)
        end = msgspec.json.decode(row.conclusion, type=_End)
        samples = [_samples(counts.get(model_id)) for model_id in begun.plan.model_ids]
    except (msgspec.DecodeError, InvalidRequestError) as error:
        log.warning("experiment.unreadable", experiment_id=row.id, reason=str(error))
        return None
    return Experiment(
        row.id,
        begun.plan,
        row.created_at,
        active=begun.active,
        samples=samples,
        found=end.found,
        conclusion=end.conclusion,
    )


def _samples(data: str | None) -> Samples:
    """Nothing, where the server ended before it was written."""
    return Samples() if data is None else msgspec.json.decode(data, type=Samples)


def _request(row: Row[Any]) -> RecentRequest:
    return RecentRequest(
        request_id=row.request_id,
        experiment_id=row.experiment_id,
        model_id=row.variant,
        user=row.user_id,
        at=row.at,
        score=row.score,
    )
