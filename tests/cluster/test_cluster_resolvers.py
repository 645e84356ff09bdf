"""Resolvers on sample environments of SLURM, Kubernetes, MPI, torchrun and TF_CONFIG."""

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.runtime.cluster.resolvers import (
    expand_counts,
    expand_hostlist,
    expand_ports,
    from_environment,
)

Invalid, NotFound, Unsupported = (
    wf.errors.InvalidArgumentError,
    wf.errors.NotFoundError,
    wf.errors.UnsupportedError,
)
JOBS = {"ps": 2, "worker": None}


# ------------------------------------------------------------------------------------- short forms
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[1-3,07],b,c[1-2]-ib", ["n1", "n2", "n3", "n07", "b", "c1-ib", "c2-ib"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("login.cluster.org", ["login.cluster.org"]),
        ("n[9-10]", ["n9", "n10"]),
        ("[3-4]", ["3", "4"]),
    ],
)
def test_hostlists(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize(
    "bad",
    [
        "n[1-", "n[3-1]", "n[a]", "n[[1]]", "n[1]]", "", ",", "a,,b", "n[]", "n[1,]",
        "n[1-99999999]", "n[0-999][0-999]", "n[" + "9" * 30 + "]", "a b", "a;b",
        "n[1-2", "n[1\u0663]",
    ],
)  # fmt: skip
def test_bad_hostlists(bad: str) -> None:
    with pytest.raises(Invalid, match="no list of hosts"):
        expand_hostlist(bad)


def compressed(hosts: list[str]) -> str:
    """A hostlist that expands to these hosts in this order; neighbours that count up are joined."""
    parts: list[str] = []
    i = 0
    while i < len(hosts):
        stem, digits = _stem(hosts[i])
        n = 1
        while digits and i + n < len(hosts):
            following = str(int(digits) + n).zfill(len(digits))
            if hosts[i + n] != stem + following:
                break
            n += 1
        last = str(int(digits) + n - 1).zfill(len(digits)) if digits else ""
        parts.append(hosts[i] if n == 1 else f"{stem}[{digits}-{last}]")
        i += n
    return ",".join(parts)


def _stem(host: str) -> tuple[str, str]:
    """The name without the digits at its end, and these; none if they are too many to count."""
    found = re.search(r"[0-9]{1,18}$", host, re.ASCII)
    return (host[: found.start()], found[0]) if found else (host, "")


host = st.from_regex(r"[a-z][a-z0-9-]{0,6}[0-9]{0,5}", fullmatch=True)


@given(st.lists(host, min_size=1, max_size=30))
def test_hostlist_round_trip(hosts: list[str]) -> None:
    assert expand_hostlist(compressed(hosts)) == hosts


@given(st.text("a", min_size=1, max_size=3), st.integers(0, 2000), st.integers(1, 300), st.data())
def test_ranges_are_compressed(stem: str, first: int, n: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 6))
    hosts = [stem + str(first + i).zfill(width) for i in range(n)]
    text = compressed(hosts)
    assert expand_hostlist(text) == hosts
    assert text.count(",") == 0


@given(st.text("n[]0123456789-,x()", max_size=20))
def test_junk_is_expanded_or_refused(text: str) -> None:
    for expand in (expand_hostlist, expand_counts, expand_ports):
        with contextlib.suppress(Invalid):
            assert expand(text)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=9))
def test_counts(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in runs)
    assert expand_counts(text) == [n for n, times in runs for _ in range(times)]


@pytest.mark.parametrize("bad", ["", "x", "2(x)", "2(x0)", "2x3", "1,,2", "2(x99999999)"])
def test_bad_counts(bad: str) -> None:
    with pytest.raises(Invalid, match="no list of counts"):
        expand_counts(bad)


# ------------------------------------------------------------------------------------------- JSON
def config(task: object, **more: object) -> str:
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}
    return json.dumps({"cluster": cluster, "task": task, **more})


def test_tf_config() -> None:
    text = config({"type": "worker", "index": 0}, rpc_layer="grpc", environment="cloud")
    here = from_environment(environ={"TF_CONFIG": text, "CUDA_VISIBLE_DEVICES": "0,2"})
    assert (here.job, here.task, here.rank, here.gpus) == ("worker", 0, 2, ("0", "2"))
    assert here.source == "TF_CONFIG"
    assert str(here) == "/job:worker/task:0 at tcp://c:1 (TF_CONFIG)"


def test_weft_config_comes_first() -> None:
    env = {
        "TF_CONFIG": config({"type": "worker", "index": 0}),
        "WEFT_CONFIG": config({"type": "ps", "index": "1"}),
        "RANK": "5",
    }
    here = wf.train.cluster_from_environment(environ=env)
    assert (here.job, here.task, here.source) == ("ps", 1, "WEFT_CONFIG")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "WEFT_CONFIG is not JSON"),
        ("[]", 'no "cluster"'),
        ("{}", 'no "cluster"'),
        (config(None), "does not say which task"),
        (config({"type": "ps"}), "does not say which task"),
        (config({"type": "ps", "index": True}), "does not say which task"),
        (config({"type": "ps", "index": 2}), "no task 2 of the job 'ps'"),
        (config({"type": "evaluator", "index": 0}), "program of its own"),
        ('{"cluster": {"ps": ["x"]}, "task": {"type": "ps", "index": 0}}', "WEFT_CONFIG: 'x' is"),
    ],
)  # fmt: skip
def test_bad_configs(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        from_environment(environ={"WEFT_CONFIG": text})


# ------------------------------------------------------------------------------------------ SLURM
def slurm(rank: int = 3, **more: str) -> dict[str, str]:
    """srun -n5 on gpu[08-10], 2 tasks on the first two, in an allocation that is larger."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_JOB_NODELIST": "gpu[08-16]",
        "SLURM_TASKS_PER_NODE": "4(x9)",
        "SLURM_NTASKS": "36",
        "SLURM_STEP_NODELIST": "gpu[08-10]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_STEP_NUM_TASKS": "5",
        **more,
    }


def test_slurm_block() -> None:
    more = {"SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURMD_NODENAME": "gpu09"}
    here = from_environment(JOBS, slurm(**more, SLURM_STEP_GPUS="1", SLURM_RESTART_COUNT="2"))
    assert (here.job, here.task, here.rank, here.local_rank) == ("worker", 1, 3, 1)
    assert (here.gpus, here.restarts, here.source) == (("1",), 2, "SLURM")
    assert here.cluster.as_dict() == {
        "ps": ["tcp://gpu08:23400", "tcp://gpu08:23401"],
        "worker": ["tcp://gpu09:23400", "tcp://gpu09:23401", "tcp://gpu10:23400"],
    }


def test_slurm_cyclic() -> None:
    more = {"SLURM_DISTRIBUTION": "cyclic:block", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
    here = from_environment(environ=slurm(**more))
    hosts = ["gpu08:23400", "gpu09:23400", "gpu10:23400", "gpu08:23401", "gpu09:23401"]
    assert here.cluster.as_dict() == {"worker": [f"tcp://{h}" for h in hosts]}


def test_every_rank_sees_the_same_cluster() -> None:
    found = [from_environment(JOBS, slurm(rank)) for rank in range(5)]
    assert len({one.cluster for one in found}) == 1
    assert [one.rank for one in found] == list(range(5))
    assert len({one.address for one in found}) == 5


def test_slurm_reserved_ports() -> None:
    here = from_environment(environ=slurm(SLURM_STEP_RESV_PORTS="12001,12005-12006"))
    assert here.address == "tcp://gpu09:12005"
    with pytest.raises(Invalid, match="--resv-ports=2"):
        from_environment(environ=slurm(SLURM_STEP_RESV_PORTS="12001"))


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"SLURM_DISTRIBUTION": "arbitrary"}, Unsupported, "does not follow"),
        ({"SLURM_DISTRIBUTION": "plane=2"}, Unsupported, "does not follow"),
        ({"SLURM_NODEID": "0"}, Unsupported, "SLURM_NODEID=0, and 1 was expected"),
        ({"SLURMD_NODENAME": "gpu10"}, Unsupported, "gpu09 was expected"),
        ({"SLURM_HET_SIZE": "2"}, Unsupported, "heterogeneous"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, Invalid, "contradicts itself"),
        ({"SLURM_PROCID": "5"}, Invalid, "contradicts itself"),
        ({"SLURM_STEP_NODELIST": "gpu[08-09]"}, Invalid, "contradicts itself"),
        ({"SLURM_PROCID": "x"}, Invalid, "SLURM_PROCID='x' is no number"),
        ({"SLURM_STEP_NODELIST": "gpu[08-"}, Invalid, "brackets"),
    ],
)
def test_slurm_refused(more: dict[str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        from_environment(environ=slurm(**more))


def test_a_batch_script_is_no_task() -> None:
    batch = {k: v for k, v in slurm(0).items() if "STEP" not in k}
    with pytest.raises(NotFound, match="srun"):
        from_environment(environ=batch)
    with pytest.raises(NotFound, match="SLURM_STEP_NODELIST or SLURM_JOB_NODELIST is not set"):
        wf.train.SlurmResolver().resolve({"SLURM_PROCID": "0"})


# ----------------------------------------------------------------------------------- job sizes
def test_jobs_from_a_variable() -> None:
    here = from_environment(environ=slurm(4, WEFT_JOBS="ps=1, worker=*"))
    assert (here.job, here.task, here.cluster.num_tasks("worker")) == ("worker", 3, 4)


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ({"ps": 2, "worker": 2}, "do not fit the 5 tasks"),
        ({"ps": 5, "worker": None}, "do not fit the 5 tasks"),
        ({"ps": None, "worker": None}, "at least 1"),
        ({"ps": 0, "worker": 5}, "at least 1"),
        ({}, "at least 1"),
    ],
)
def test_jobs_that_do_not_fit(jobs: dict[str, int | None], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        from_environment(jobs, slurm())


@pytest.mark.parametrize("text", ["ps", "ps=2,ps=3", "ps=-1", "=2", "ps=2;worker=3"])
def test_bad_jobs_variable(text: str) -> None:
    with pytest.raises(Invalid, match=re.escape("is not as ps=2,worker=*")):
        from_environment(environ=slurm(WEFT_JOBS=text))


# ------------------------------------------------------------------------------------- Kubernetes
def test_indexed_job() -> None:
    env = {"WEFT_SERVICE": "train.ns.svc", "JOB_COMPLETION_INDEX": "4", "HOSTNAME": "digits-4"}
    here = from_environment({"ps": 2, "worker": 3}, env)
    assert (here.job, here.task, here.source) == ("worker", 2, "Kubernetes")
    assert here.cluster.address("ps", 0) == "tcp://digits-0.train.ns.svc:23400"


def test_stateful_sets() -> None:
    env = {
        "WEFT_SERVICE": "train",
        "HOSTNAME": "digits-worker-1",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "WEFT_JOBS": "ps=1,worker=2",
    }
    here = from_environment(environ=env | {"HOSTNAME": "digits-1"})
    assert (here.job, here.task) == ("worker", 0)
    names = {"ps": "digits-ps", "worker": "digits-worker"}
    here = wf.train.KubernetesResolver(names=names, port=7).resolve(env)
    assert (here.job, here.task, here.address) == ("worker", 1, "tcp://digits-worker-1.train:7")
    with pytest.raises(Invalid, match="names has"):
        wf.train.KubernetesResolver({"ps": 1}, names=names).resolve(env)
    with pytest.raises(Invalid, match="'other' is the name of 0 jobs"):
        wf.train.KubernetesResolver(names=names).resolve(env | {"HOSTNAME": "other-0"})
    with pytest.raises(Invalid, match="pod 2 of 'digits-worker'"):
        wf.train.KubernetesResolver(names=names).resolve(env | {"HOSTNAME": "digits-worker-2"})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"HOSTNAME": "digits"}, "does not end in a number"),
        ({"HOSTNAME": "digits-3"}, "is not of JOB_COMPLETION_INDEX=4"),
        ({"HOSTNAME": "digits-5", "JOB_COMPLETION_INDEX": "5"}, "this is pod 5"),
        ({"WEFT_JOBS": ""}, "does not say how many tasks"),
        ({"WEFT_JOBS": "worker=*"}, "at least 1"),
    ],
)
def test_kubernetes_refused(more: dict[str, str], says: str) -> None:
    env = {
        "WEFT_SERVICE": "train",
        "JOB_COMPLETION_INDEX": "4",
        "HOSTNAME": "digits-4",
        "WEFT_JOBS": "ps=2,worker=3",
    }
    assert from_environment(environ=env).task == 2
    with pytest.raises(Invalid, match=says):
        from_environment(environ=env | more)


# ------------------------------------------------------------------------------------------ ranks
def ranks(kind: str, rank: int, world: int, local: int, local_world: int) -> dict[str, str]:
    names = {
        "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE"),
        "torch": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        "pmi": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    }[kind]  # fmt: skip
    return dict(zip(names, map(str, (rank, world, local, local_world)), strict=True))


@pytest.mark.parametrize("kind", ["mpi", "torch", "pmi"])
def test_one_host(kind: str) -> None:
    here = from_environment(JOBS, ranks(kind, 3, 5, 3, 5))
    assert (here.job, here.task, here.address) == ("worker", 1, "tcp://127.0.0.1:23403")


@pytest.mark.parametrize("kind", ["mpi", "torch", "pmi"])
def test_several_hosts_need_names(kind: str) -> None:
    env = ranks(kind, 3, 4, 1, 2) | {"TORCHELASTIC_RESTART_COUNT": "1"}
    with pytest.raises(NotFound, match="WEFT_HOSTS"):
        from_environment(JOBS, env)
    here = from_environment(JOBS, env | {"WEFT_HOSTS": "n[1-2]"})
    assert (here.job, here.task, here.address) == ("worker", 1, "tcp://n2:23401")
    assert here.restarts == 1
    for hosts in ("n[1-3]", "n[1-4]"):
        with pytest.raises(Invalid, match="does not follow"):
            from_environment(JOBS, env | {"WEFT_HOSTS": hosts})


def test_mpirun_inside_of_slurm() -> None:
    assert from_environment(environ=slurm(0) | ranks("mpi", 1, 2, 1, 2)).source == "Open MPI"
    assert from_environment(environ=slurm(0) | ranks("pmi", 1, 2, 1, 2)).source == "SLURM"


def test_ranks_refused() -> None:
    with pytest.raises(Invalid, match="rank 5 of 5"):
        from_environment(environ=ranks("torch", 5, 5, 0, 5))
    with pytest.raises(NotFound, match="PMI_SIZE is not set"):
        from_environment(environ={"PMI_RANK": "1"})
    with pytest.raises(NotFound, match="OMPI_COMM_WORLD_RANK"):
        wf.train.RankResolver().resolve({})


def test_nothing_is_there() -> None:
    with pytest.raises(NotFound, match="WEFT_CONFIG or TF_CONFIG") as caught:
        wf.train.cluster_from_environment(environ={})
    assert __file__ in str(caught.value)
