"""ClusterSpec: what it takes, what it says, and how it refuses."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.runtime.cluster.spec import is_open, parse_address, tcp_address

JOBS = {"ps": ["a:2222", "b:2222"], "worker": ["tcp://c:2222", "ipc:///tmp/w1", "[::1]:5"]}
CANONICAL = {
    "ps": ["tcp://a:2222", "tcp://b:2222"],
    "worker": ["tcp://c:2222", "ipc:///tmp/w1", "tcp://[::1]:5"],
}


def test_looking() -> None:
    spec = wf.train.ClusterSpec(JOBS)
    assert spec.jobs == ("ps", "worker")
    assert spec.tasks() == (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2))
    assert spec.address("worker", 1) == spec.task_address("worker", 1) == "ipc:///tmp/w1"
    assert spec.num_tasks("ps") == 2
    assert spec.task_indices("worker") == [0, 1, 2]
    assert spec.as_dict() == CANONICAL
    assert spec.job_tasks("ps") == ("tcp://a:2222", "tcp://b:2222")
    assert ("ps" in spec, "chief" in spec, list(spec), len(spec)) == (
        True,
        False,
        ["ps", "worker"],
        2,
    )


def test_forms_are_equal(tmp_path: Path) -> None:
    spec = wf.train.ClusterSpec(JOBS)
    file = tmp_path / "cluster.json"
    file.write_text(spec.to_json())
    wrapped = tmp_path / "tf_config.json"
    wrapped.write_text(json.dumps({"cluster": JOBS, "task": {"type": "ps", "index": 0}}))
    forms = [
        wf.train.ClusterSpec(spec),
        wf.train.ClusterSpec(json.dumps(JOBS)),
        wf.train.ClusterSpec.load(file),
        wf.train.ClusterSpec.load(wrapped),
        wf.train.ClusterSpec(eval(repr(spec).removeprefix("ClusterSpec"))),
    ]
    assert all(one == spec and hash(one) == hash(spec) for one in forms)
    assert wf.train.ClusterSpec({"ps": ["a:1"]}) != wf.train.ClusterSpec({"ps": ["a:2"]})
    assert spec != CANONICAL


def test_a_job_may_be_called_cluster() -> None:
    spec = wf.train.ClusterSpec('{"cluster": ["a:1", "b:1"]}')
    assert spec.tasks() == (("cluster", 0), ("cluster", 1))


def test_with_address_leaves_the_rest() -> None:
    spec = wf.train.ClusterSpec(JOBS)
    moved = spec.with_address("ps", 1, "d:7")
    assert moved.as_dict() == CANONICAL | {"ps": ["tcp://a:2222", "tcp://d:7"]}
    assert spec.as_dict() == CANONICAL
    with pytest.raises(wf.errors.InvalidArgumentError, match="both at tcp://a:2222"):
        spec.with_address("ps", 1, "a:2222")


def test_open_ports_may_repeat() -> None:
    spec = wf.train.ClusterSpec({"local": ["127.0.0.1:0", "127.0.0.1:0"]})
    assert all(map(is_open, spec.job_tasks("local")))
    assert not is_open("ipc:///tmp/a:0")


@pytest.mark.parametrize(
    "bad",
    [
        "host", "host:", ":1", "host:65536", "host:-1", "http://host:1", "grpc://host:1", "a b:1",
        "tcp://host", "ipc://relative", "ipc:///" + "x" * 120, "ipc:///a\0b", "", "::1:5",
        "host:1\n", None, 5, b"host:1",
    ],
)  # fmt: skip
def test_addresses_that_are_none(bad: object) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="address"):
        parse_address(bad)


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ({}, wf.errors.InvalidArgumentError, "at least one job"),
        ({"ps": []}, wf.errors.InvalidArgumentError, "'ps' needs a list"),
        ({"ps": "a:1"}, wf.errors.InvalidArgumentError, "'ps' needs a list"),
        ({"ps": {1: "a:1"}}, wf.errors.InvalidArgumentError, "gaps"),
        ({"ps 1": ["a:1"]}, wf.errors.InvalidArgumentError, "name of a job"),
        ({0: ["a:1"]}, wf.errors.InvalidArgumentError, "0 cannot be the name"),
        ({"ps": ["a:1"], "w": ["a:1"]}, wf.errors.InvalidArgumentError, "/job:ps/task:0 and "),
        ("{", wf.errors.InvalidArgumentError, "not JSON"),
        ('{"a": ["a:1"], "a": ["b:1"]}', wf.errors.InvalidArgumentError, "twice"),
        ("[1]", wf.errors.TypeRuleError, "got a list"),
        (None, wf.errors.TypeRuleError, "got a NoneType"),
    ],
)  # fmt: skip
def test_clusters_that_are_none(bad: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        wf.train.ClusterSpec(bad)  # type: ignore[arg-type]
    assert __file__ in str(caught.value)  # the user's line


@pytest.mark.parametrize("task", [-1, 2, True, "0", 0.0])
def test_no_such_task(task: object) -> None:
    spec = wf.train.ClusterSpec(JOBS)
    with pytest.raises(wf.errors.NotFoundError, match=r"no task .* of the job 'ps'"):
        spec.address("ps", task)  # type: ignore[arg-type]
    with pytest.raises(wf.errors.NotFoundError, match="did you mean 'worker'"):
        spec.address("workers", 0)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(wf.errors.NotFoundError, match=r"none\.json"):
        wf.train.ClusterSpec.load(tmp_path / "none.json")
    file = tmp_path / "bad.json"
    file.write_text('{"ps": ["nowhere"]}')
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"bad\.json.*'nowhere' is no address"):
        wf.train.ClusterSpec.load(file)


def test_cluster_task() -> None:
    spec = wf.train.ClusterSpec(JOBS)
    here = wf.train.ClusterTask(spec, "worker", 0)
    assert (here.rank, here.address, here.is_chief) == (2, "tcp://c:2222", True)
    assert not wf.train.ClusterTask(spec, "ps", 0).is_chief
    with pytest.raises(wf.errors.NotFoundError):
        wf.train.ClusterTask(spec, "ps", 2)
    chief = wf.train.ClusterSpec(JOBS | {"chief": ["z:1"]})
    assert wf.train.ClusterTask(chief, "chief", 0).is_chief
    assert not wf.train.ClusterTask(chief, "worker", 0).is_chief


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
hosts = st.one_of(
    st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True),
    st.ip_addresses().map(str),
)
addresses = st.one_of(
    st.builds(tcp_address, hosts, st.integers(1, 65535)),
    st.from_regex(r"ipc:///[a-zA-Z0-9_./ -]{1,40}", fullmatch=True),
)


@given(st.lists(addresses, min_size=1, max_size=8, unique=True), st.data())
def test_round_trips(held: list[str], data: st.DataObject) -> None:
    jobs: dict[str, list[str]] = {}
    while held:
        n = data.draw(st.integers(1, len(held)))
        jobs.setdefault(data.draw(names), []).extend(held[:n])
        held = held[n:]
    spec = wf.train.ClusterSpec(jobs)
    assert spec.as_dict() == jobs
    assert wf.train.ClusterSpec(spec.to_json()) == spec
    for job, task in spec.tasks():
        assert spec.address(job, task) == jobs[job][task]


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except wf.errors.InvalidArgumentError:
        return
    assert parse_address(address) == address
