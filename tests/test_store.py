"""Transactions, errors, windows, parameters, leases, retention: on both databases."""

import sqlite3
import threading

import numpy as np
import pytest
from sqlalchemy import select

from calibrator.core.windows import WindowSums
from calibrator.store import (
    ConflictError,
    DataRefusedError,
    FencedError,
    SchemaError,
    StaleReadError,
    Store,
    StoreError,
    StoreUnavailableError,
    audit,
    boots,
    dead_letters,
    deployments,
    leases,
    parameters,
    positions,
    refreshes,
    retention,
    schema,
    windows,
)
from calibrator.store.boots import Boot
from calibrator.store.dead_letters import DeadLetter
from calibrator.store.windows import Cell
from serving_adapter.contract import ParameterDocument, decode_document, encode_document, seal
from tests.ingest_support import GAMMA, NOW, expected_sums, make_rounds

pytest_plugins = ["tests.store_fixtures"]

HOUR = 3600
START = 1_700_000_000 // 86_400 * 86_400


@pytest.fixture
def prod(store):
    with store.write() as connection:
        return deployments.register(connection, "prod", GAMMA, "f", NOW)


def test_a_transaction_is_all_or_nothing(store):
    def break_off():
        with store.write() as connection:
            deployments.register(connection, "prod", GAMMA, "f", NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    with store.read() as connection:
        assert deployments.get(connection, "prod") is None


def test_registering_twice_keeps_the_first(store, prod):
    with store.write() as connection:
        again = deployments.register(connection, "prod", 3, "g", NOW + 1)
        assert again == prod
        deployments.set_frozen(connection, prod.id, True)
        deployments.set_settings(connection, prod.id, {"explore": 0.01})
        deployments.set_fingerprint(connection, prod.id, "g")
    with store.read() as connection:
        found = deployments.get(connection, "prod")
    assert (found.frozen, found.settings, found.fingerprint) == (True, {"explore": 0.01}, "g")


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "", "postgresql+asyncpg://x/y"])
def test_other_databases_are_refused(url):
    with pytest.raises(StoreError, match="database URL"):
        Store(url)


def test_a_database_without_tables_says_so(store_url):
    with pytest.raises(SchemaError), Store(store_url).read() as connection:
        deployments.every(connection)


def test_a_value_that_does_not_fit_is_told_apart_from_a_database_that_is_away(store, prod):
    with pytest.raises(DataRefusedError), store.write() as connection:
        positions.place(connection, "g", "t", 0, 2**63, NOW)
    with pytest.raises(DataRefusedError), store.write() as connection:
        deployments.add_segments(connection, prod.id + 1, ["a"])  # no such deployment


def test_a_locked_database_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrator.store.engine.LOCK_SECONDS", 0)
    store = Store(f"sqlite:///{tmp_path}/store.db")
    store.migrate()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"), store.write():
        pass
    with store.read() as connection:  # readers are not disturbed
        assert deployments.every(connection) == []
    other.execute("ROLLBACK")
    with store.write() as connection:
        deployments.register(connection, "prod", GAMMA, "f", NOW)


def test_a_full_disk_is_unavailable_and_leaves_nothing_behind(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/store.db")
    store.migrate()
    with store.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    letters = [DeadLetter("t", 0, i, "x" * 500, NOW, 1) for i in range(200)]
    with pytest.raises(StoreUnavailableError, match="full"), store.write() as connection:
        dead_letters.append(connection, letters)
    with store.read() as connection:
        assert dead_letters.recent(connection) == []


def test_a_read_only_database_is_unavailable(tmp_path):
    Store(f"sqlite:///{tmp_path}/store.db").migrate()
    store = Store(f"sqlite:///file:{tmp_path}/store.db?mode=ro&uri=true")
    with pytest.raises(StoreUnavailableError), store.write() as connection:
        deployments.register(connection, "prod", GAMMA, "f", NOW)


def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(StoreUnavailableError), Store("postgresql://x:y@127.0.0.1:1/z").read():
        pass


def test_a_database_in_memory_is_shared_by_threads():
    store = Store("sqlite://")
    store.migrate()

    def register(i):
        with store.write() as connection:
            deployments.register(connection, f"d-{i}", GAMMA, "f", NOW)

    threads = [threading.Thread(target=register, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as connection:
        assert deployments.count(connection) == 8


def cells_of(connection, prod, spans):
    """Fold fresh rounds into each (start, segment, sampling) and remember the sums."""
    ids = deployments.add_segments(connection, prod.id, {segment for _, segment, _ in spans})
    sums = {key: expected_sums(make_rounds(20, seed)) for seed, key in enumerate(spans)}
    windows.add(
        connection, prod.id, [Cell(k[0], ids[k[1]], k[2], each) for k, each in sums.items()], raw=True
    )
    return sums


SPANS = [
    (START + minute * 60, segment, sampling)
    for minute in (0, 1, 59, 60, 61, 150)
    for segment in ("chat", "code")
    for sampling in ("greedy", "mid")
]


def added(sums, chosen):
    total = WindowSums.zeros(GAMMA)
    for key, each in sums.items():
        if chosen(key):
            total = total + each
    return total


def test_sums_written_twice_are_added(store, prod):
    with store.write() as connection:
        first = cells_of(connection, prod, SPANS[:3])
        cells_of(connection, prod, SPANS[:3])
        total = windows.total(connection, prod.id, GAMMA, raw=True)
    once = added(first, lambda _key: True)
    assert total == once + once


def test_a_series_has_the_sums_of_its_steps(store, prod):
    with store.write() as connection:
        sums = cells_of(connection, prod, SPANS)
        series = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, 60, raw=True)
        hours = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, HOUR, raw=True)
        part = windows.query(connection, prod.id, GAMMA, START + 60, START + HOUR, raw=True)
        empty = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, HOUR)
    assert [p.start - START for p in series] == [0, 60, 3540, 3600, 3660, 9000]
    for point in series:
        assert point.sums == added(sums, lambda key, at=point.start: key[0] == at)
    assert [p.start - START for p in hours] == [0, HOUR, 2 * HOUR]
    for point in hours:
        assert point.sums == added(sums, lambda key, at=point.start: at <= key[0] < at + HOUR)
    assert part[0].sums == added(sums, lambda key: START + 60 <= key[0] < START + HOUR)
    assert empty == []


def test_series_by_segment_and_sampling_bucket(store, prod):
    with store.write() as connection:
        sums = cells_of(connection, prod, SPANS)
        options = {"raw": True, "by_segment": True, "by_sampling": True}
        every = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, **options)
        chat = windows.query(
            connection, prod.id, GAMMA, START, START + 3 * HOUR, raw=True, segment="chat", sampling="mid"
        )
        light = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, raw=True, bins=False)
    assert [(p.segment, p.sampling) for p in every] == [
        ("chat", "greedy"), ("chat", "mid"), ("code", "greedy"), ("code", "mid"),
    ]  # fmt: skip
    for point in every:
        assert point.sums == added(sums, lambda key, p=point: key[1:] == (p.segment, p.sampling))
    assert chat[0].sums == every[1].sums
    assert np.array_equal(light[0].sums.scalars, added(sums, lambda _key: True).scalars)


def test_the_hours_are_the_minutes_added_up(store, prod):
    with store.write() as connection:
        cells_of(connection, prod, SPANS)
        columns = [schema.raw_windows.c[name] for name in schema.SUM_COLUMNS]
        minutes = np.array(connection.execute(select(*columns)).all(), dtype=np.int64).sum(axis=0)
        columns = [schema.raw_window_hours.c[name] for name in schema.SUM_COLUMNS]
        hours = np.array(connection.execute(select(*columns)).all(), dtype=np.int64).sum(axis=0)
    assert np.array_equal(minutes, hours)


def test_retention_deletes_what_is_old_and_nothing_else(store, prod):
    with store.write() as connection:
        sums = cells_of(connection, prod, SPANS)
        dead_letters.append(connection, [DeadLetter("t", 0, i, "r", START + i * HOUR, 1) for i in range(4)])
    keep = retention.Retention(window_days=1, hour_days=1, dead_letter_days=1)
    now = START + 86_400 + HOUR
    deleted = retention.apply(store, now, keep)
    assert deleted["raw_windows"] == 3 * 4 * GAMMA
    assert deleted["raw_window_hours"] == 4 * GAMMA
    assert deleted["dead_letters"] == 1
    with store.read() as connection:
        rest = windows.total(connection, prod.id, GAMMA, raw=True)
        assert len(dead_letters.recent(connection)) == 3
    assert rest == added(sums, lambda key: key[0] >= START + HOUR)
    assert sum(retention.apply(store, now, keep).values()) == 0


def test_retention_deletes_the_audit_of_long_ago(store):
    def note(at):
        with store.write() as connection:
            audit.begin(
                connection, at=at, subject="ada", role="admin", method="PUT", path="/v1/x", request_id=str(at)
            )

    day = retention.DAY
    for days in (0, 1, 300):
        note(NOW + days * day)
    assert retention.apply(store, NOW + 400.5 * day)["audit"] == 1
    with store.read() as connection:
        assert [entry.at for entry in audit.recent(connection)] == [NOW + 300 * day, NOW + day]
    assert retention.apply(store, NOW + 310 * day, retention.Retention(audit_days=100))["audit"] == 1


def test_positions_move_only_from_where_they_are_expected(store):
    def advance(expected, after):
        with store.write() as connection:
            positions.advance(connection, "g", "t", 3, expected, after, NOW)

    advance(None, 10)
    advance(10, 20)
    for wrong in (None, 10, 30):
        with pytest.raises(FencedError):
            advance(wrong, 99)
    with store.read() as connection:
        assert positions.read(connection, "g") == {("t", 3): 20}
        assert positions.read(connection, "other") == {}


def test_a_boot_changed_meanwhile_is_stale(store, prod):
    boot = Boot("pod", "b", "f", NOW, NOW)
    with store.write() as connection:
        boots.save(connection, prod.id, boot)
    with pytest.raises(StaleReadError), store.write() as connection:
        boots.save(connection, prod.id, boot)
    with store.read() as connection:
        mine, theirs = (boots.load(connection, prod.id, [("pod", "b")])["pod", "b"] for _ in range(2))
    mine.rounds.fold(0, 5)
    with store.write() as connection:
        boots.save(connection, prod.id, mine)
    with pytest.raises(StaleReadError), store.write() as connection:
        boots.save(connection, prod.id, theirs)
    with store.read() as connection:
        assert boots.load(connection, prod.id, [("pod", "b")])["pod", "b"].rounds.folded == 5
        assert boots.totals(connection, prod.id).folded == 5


def test_the_list_of_dead_letters_is_bounded_and_has_no_duplicates(store):
    letters = [DeadLetter("t", 0, i, "reason\x00 \ud800" * 100, NOW, 1) for i in range(30)]
    with store.write() as connection:
        dead_letters.append(connection, letters, keep=10)
        dead_letters.append(connection, letters[-3:], keep=10)
        found = dead_letters.recent(connection)
    assert len(found) <= 10
    assert [each.offset for each in found[:3]] == [29, 28, 27]
    assert len(found[0].reason) <= 500


def document(version):
    return seal(
        ParameterDocument(
            deployment="prod", fingerprint="f", version=version, gamma=GAMMA, form="affine",
            temperatures=[1.0, 1.25, 0.1 + 0.2, 2.0, 1e-2], offsets=[0.0, -0.5, 1 / 3, 0.0, 2.0],
            created_at="2026-01-01T00:00:00Z", explore=0.01,
        ),
        b"key",
    )  # fmt: skip


def test_parameter_versions_only_rise_and_are_kept_to_the_bit(store, prod):
    with store.write() as connection:
        assert parameters.latest(connection, prod.id) is None
        parameters.append(connection, prod.id, document(1), NOW, "published")
        parameters.append(connection, prod.id, document(5), NOW, "candidate")
        for version in (1, 4, 5):
            with pytest.raises(ConflictError):
                parameters.append(connection, prod.id, document(version), NOW, "published")
        parameters.set_state(connection, prod.id, 5, "refused")
    with store.read() as connection:
        assert parameters.get(connection, prod.id, 1) == document(1)
        assert decode_document(encode_document(parameters.get(connection, prod.id, 5)), b"key") == document(5)
        assert parameters.get(connection, prod.id, 2) is None
        assert parameters.latest(connection, prod.id).state == "refused"
        assert parameters.latest(connection, prod.id, "published").document.version == 1
        assert [v.document.version for v in parameters.history(connection, prod.id)] == [5, 1]


def test_refreshes_are_kept_with_their_reasons(store, prod):
    with store.write() as connection:
        first = refreshes.start(connection, prod.id, NOW)
        refreshes.start(connection, prod.id, NOW + 1)
        refreshes.finish(connection, first, NOW + 2, "kept", ["n_eff: 3"], {"ece": None}, None)
        found = refreshes.recent(connection, prod.id)
    assert [each.outcome for each in found] == [None, "kept"]
    assert (found[1].reasons, found[1].evidence) == (["n_eff: 3"], {"ece": None})


def test_a_lease_is_held_by_one_until_it_runs_out_or_is_given_back(store):
    def acquire(holder, seconds=60.0):
        with store.write() as connection:
            return leases.acquire(connection, "refresh", holder, seconds)

    first = acquire("a")
    assert first is not None
    assert acquire("b") is None
    assert acquire("a", 120) > first
    with store.write() as connection:
        assert not leases.release(connection, "refresh", "b")
        assert leases.holder_of(connection, "refresh") == "a"
        assert leases.release(connection, "refresh", "a")
    assert acquire("b", -1.0) is not None  # runs out at once
    with store.read() as connection:
        assert leases.holder_of(connection, "refresh") is None
        assert leases.database_now(connection) > 1.7e9
    assert acquire("a") is not None


def test_of_many_that_ask_at_once_one_gets_the_lease(store):
    start, got = threading.Barrier(6), []

    def ask(i):
        start.wait()
        with store.write() as connection:
            if leases.acquire(connection, "refresh", f"holder-{i}", 60) is not None:
                got.append(i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
