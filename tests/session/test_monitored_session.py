"""MonitoredTrainingSession in this process: hooks, checkpoints, recovery, threads."""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitored_model import model, train

import weft as wf
from weft.frontend.train import scaffold as creating
from weft.frontend.train.scaffold import SessionCreator


class Recorder(train.SessionRunHook):
    """Notes its calls, and fails where it is told to."""

    def __init__(self, fail_at: dict[int, BaseException] | None = None) -> None:
        self.calls: list[str] = []
        self.fail_at = fail_at or {}
        self.seen: list[Any] = []
        self.steps = 0

    def begin(self) -> None:
        self.calls.append("begin")
        self.w = next(v for v in wf.global_variables() if v.name == "w")

    def after_create_session(self, session: wf.Session, coord: train.Coordinator) -> None:
        self.calls.append("create")
        assert not coord.should_stop()

    def before_run(self, run_context: train.SessionRunContext) -> train.SessionRunArgs:
        self.calls.append("before")
        return train.SessionRunArgs({"w": self.w})

    def after_run(
        self, run_context: train.SessionRunContext, run_values: train.SessionRunValues
    ) -> None:
        self.calls.append("after")
        self.steps += 1
        if self.steps in self.fail_at:
            raise self.fail_at[self.steps]
        self.seen.append(float(run_values.results["w"]))

    def end(self, session: wf.Session) -> None:
        self.calls.append("end")


def test_hooks_are_called_in_order() -> None:
    graph, x, update, w = model()
    hook = Recorder()
    with graph.as_default(), train.MonitoredTrainingSession(hooks=[hook]) as session:
        assert session.run([w, update], {x: 2.0}) == [1.0, None]
        assert session.run(w) == 3.0
        assert not session.should_stop()
        assert graph.finalized
    assert session.should_stop()
    assert hook.calls == ["begin", "create", "before", "after", "before", "after", "end"]
    assert hook.seen == [1.0, 3.0]
    with pytest.raises(wf.errors.FailedPreconditionError, match="closed"):
        session.run(w)
    session.close()  # again does nothing
    assert hook.calls.count("end") == 1


def test_stop_at_step_and_checkpoints(tmp_path: Path) -> None:
    graph, x, update, w = model()
    with graph.as_default():
        hooks = [train.StopAtStepHook(last_step=7)]
        monitored = train.MonitoredTrainingSession(
            "", True, tmp_path, hooks=hooks, save_checkpoint_steps=3
        )
        with monitored as session:
            while not session.should_stop():
                session.run(update, {x: 1.0})
    state = train.get_checkpoint_state(tmp_path)
    assert state is not None
    names = [Path(p).name for p in state.all_model_checkpoint_paths]
    assert names == [f"model-{n}.safetensors" for n in (0, 3, 6, 7)]
    assert w.numpy() == 8.0

    # a new start goes on where this one ended
    graph, x, update, w = model()
    with graph.as_default():
        hooks = [train.StopAtStepHook(num_steps=2)]
        monitored = train.MonitoredTrainingSession("", True, tmp_path, hooks=hooks)
        with monitored as session:
            assert session.run(w) == 8.0
            while not session.should_stop():
                session.run(update, {x: 1.0})
    assert w.numpy() == 10.0
    latest = train.latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.endswith("model-9.safetensors")
    graph, x, update, w = model()
    with graph.as_default():
        done = train.MonitoredTrainingSession(
            "", True, tmp_path, hooks=[train.StopAtStepHook(last_step=9)]
        )
        assert done.should_stop()
        done.close()


@pytest.mark.parametrize("error", [wf.errors.AbortedError, wf.errors.UnavailableError])
def test_recovers_from_the_last_checkpoint(
    tmp_path: Path, error: type[wf.errors.WeftError], caplog: pytest.LogCaptureFixture
) -> None:
    graph, x, update, w = model()
    hook = Recorder({4: error("task lost"), 9: error("task lost")})
    with graph.as_default():
        monitored = train.MonitoredTrainingSession(
            "", True, tmp_path, hooks=[train.StopAtStepHook(last_step=10), hook],
            save_checkpoint_steps=3,
        )  # fmt: skip
        with monitored as session:
            while not session.should_stop():
                # what is fed follows from the step, also in a step that is done again
                session.run(update, lambda step: {x: float(step)})
    assert w.numpy() == 1.0 + sum(range(10))
    assert session.recoveries == 2
    assert hook.calls.count("create") == 3
    assert hook.calls.count("begin") == hook.calls.count("end") == 1
    assert "task lost" in caplog.text


def test_without_a_checkpoint_it_begins_at_the_initial_values() -> None:
    graph, x, update, w = model()
    hook = Recorder({3: wf.errors.UnavailableError("lost")})
    with graph.as_default(), train.MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in range(3):
            session.run(update, {x: 1.0})
        assert session.run(w) == 2.0


def test_other_errors_are_raised(tmp_path: Path) -> None:
    graph, x, update, _ = model()
    hook = Recorder({2: ValueError("mine")})
    with graph.as_default():
        session = train.MonitoredTrainingSession("", True, tmp_path, hooks=[hook])

    def run() -> None:
        with session:
            for _ in range(3):
                session.run(update, {x: 1.0})

    with pytest.raises(ValueError, match="mine"):
        run()
    assert session.recoveries == 0
    assert "end" not in hook.calls
    assert session.should_stop()


def test_a_step_that_fails_each_time_ends() -> None:
    graph, x, update, _ = model()
    hook = Recorder({n: wf.errors.AbortedError("again") for n in range(1, 50)})
    with graph.as_default():
        session = train.MonitoredTrainingSession(hooks=[hook])
        with pytest.raises(wf.errors.AbortedError, match="again"):
            session.run(update, {x: 1.0})
        assert hook.steps == 11
        session.close()


def test_creating_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, _, w = model()
    failures = [wf.errors.UnavailableError("not yet")] * 3
    made: list[wf.Session] = []

    def session(*args: Any, **options: Any) -> wf.Session:
        if failures:
            raise failures.pop()
        made.append(wf.Session(*args, **options))
        return made[-1]

    monkeypatch.setattr(creating, "Session", session)
    options = {"deterministic": True}
    with graph.as_default(), train.MonitoredTrainingSession(session_options=options) as monitored:
        assert monitored.run(w) == 1.0
        assert monitored.session is made[0]
    failures += [wf.errors.UnavailableError("gone")] * 100
    graph, *_ = model()
    begun = time.monotonic()
    with graph.as_default(), pytest.raises(wf.errors.UnavailableError, match="gone"):
        train.MonitoredTrainingSession(recovery_wait_secs=0.3)
    assert 0.3 <= time.monotonic() - begun < 5
    assert len(failures) > 90


def test_who_is_not_the_chief_waits() -> None:
    graph, x, update, w = model()
    with graph.as_default():
        with pytest.raises(wf.errors.DeadlineExceededError, match="initialised w, global_step"):
            train.MonitoredTrainingSession(is_chief=False, max_wait_secs=0.1)
        chief = train.MonitoredTrainingSession()
        other = train.MonitoredTrainingSession(is_chief=False)
        chief.run(update, {x: 4.0})
        assert other.run(w) == 5.0
        other.close()
        chief.close()


def test_scaffold(tmp_path: Path) -> None:
    graph, x, update, w = model()
    with graph.as_default():
        seen: list[Any] = []
        given = wf.placeholder(wf.float32, [])
        scaffold = train.Scaffold(
            init_op=wf.group(w.assign(given), train.get_or_create_global_step().assign(5)),
            init_feed_dict={given: 7.0},
            init_fn=lambda scaffold, session: seen.append(session.run(w)),
            saver=train.Saver([w]),
        )
        with train.MonitoredTrainingSession("", True, tmp_path, scaffold) as session:
            session.run(update, {x: 1.0})
    assert seen == [7.0]
    latest = train.latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.endswith("model-6.safetensors")
    assert train.load_variable(latest, "w") == 8.0

    graph, x, update, w = model()
    with graph.as_default():
        partial = train.Scaffold(init_op=w.initializer)
        with pytest.raises(wf.errors.FailedPreconditionError, match="initialising: global_step\n"):
            train.MonitoredTrainingSession(scaffold=partial)


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("junk")
    graph, *_ = model()
    with graph.as_default(), pytest.raises(wf.errors.DataLossError):
        train.MonitoredTrainingSession("", True, tmp_path)


def test_input_of_threads_ends_the_block() -> None:
    graph = wf.Graph("input")
    with graph.as_default():
        queue = train.range_input_producer(6, num_epochs=1, shuffle=False)
        row = queue.dequeue()
        total = wf.Variable(np.int32(0), name="total")
        update = total.assign_add(row)
        steps = 0
        with train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                session.run(update)
                steps += 1
    assert (steps, int(total.numpy())) == (6, 15)


def test_a_thread_meets_it_first() -> None:
    """A thread that fills a queue finds a task lost: the queue stays open, the training goes on."""
    graph = wf.Graph("threads")
    failures = [wf.errors.UnavailableError("the producer's task was lost")]
    with graph.as_default():
        queue = wf.FIFOQueue(2, wf.float32, [[]])

        def produce() -> None:
            if failures and total.numpy() >= 3:
                raise failures.pop()
            queue.enqueue(1.0, timeout=5)

        train.add_queue_runner(train.QueueRunner(queue, [produce]))
        row = queue.dequeue()
        total = wf.Variable(np.float32(0), name="total")
        update = total.assign_add(row)
        hook = Recorder()
        hook.begin = lambda: setattr(hook, "w", total)  # type: ignore[method-assign]
        with train.MonitoredTrainingSession(hooks=[hook]) as session:
            while session.recoveries == 0 or total.numpy() < 3:
                assert not session.should_stop()
                session.run(update)
    assert not failures
    assert session.recoveries == 1
    assert hook.calls.count("create") == 2


def test_hooks_may_feed_and_fetch() -> None:
    graph, x, update, w = model()

    class Feeder(train.SessionRunHook):
        def before_run(self, run_context: train.SessionRunContext) -> train.SessionRunArgs:
            assert run_context.original_args.fetches is update
            return train.SessionRunArgs(feed_dict={x: 3.0}, options=wf.RunOptions(timeout=1))

    hooks = [Feeder(), Recorder()]
    with graph.as_default(), train.MonitoredTrainingSession(hooks=hooks) as session:
        session.run(update)
        with pytest.raises(wf.errors.InvalidArgumentError, match="feeds what is fed"):
            session.run(update, {x: 1.0})
        metadata = wf.RunMetadata()  # the caller's and the hook's options together
        session.run(
            update,
            options=wf.RunOptions(timeout=0.005, trace_level=wf.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        assert metadata.traced
    assert w.numpy() == 7.0
    graph, *_ = model()
    with graph.as_default(), pytest.raises(wf.errors.TypeRuleError, match="a hook is"):
        train.MonitoredTrainingSession(hooks=[print])  # type: ignore[list-item]


def test_logging_hooks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="weft.train")
    graph, x, update, w = model()
    with graph.as_default():
        hooks = [
            train.LoggingTensorHook({"weight": w}, every_n_iter=2),
            train.LoggingTensorHook([w], at_end=True),
            train.StepCounterHook(every_n_steps=2),
        ]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(5):
                session.run(update, {x: 1.0})
    lines = [record.getMessage() for record in caplog.records]
    assert [one for one in lines if one.startswith("weight")] == [
        f"weight = {value}" for value in (1.0, 3.0, 5.0)
    ]
    assert lines[-1] == "w = 6.0"
    assert sum("steps/s" in one for one in lines) == 2


def test_nan_stops() -> None:
    graph, x, update, _ = model()
    with graph.as_default():
        session = train.MonitoredTrainingSession(hooks=[train.NanTensorHook(wf.log(x))])
        with pytest.raises(train.NanLossDuringTrainingError):
            session.run(update, {x: -1.0})
        session.close()
    graph, x, update, _ = model()
    with graph.as_default():
        hook = train.NanTensorHook(wf.log(x), fail_on_nan_loss=False)
        with train.MonitoredTrainingSession(hooks=[hook]) as session:
            session.run(update, {x: 1.0})
            assert not session.should_stop()
            session.run(update, {x: -1.0})
            assert session.should_stop()


def test_timer() -> None:
    timer = train.SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(5)
    assert timer.update_last_triggered_step(5) == (None, None)
    assert [timer.should_trigger_for_step(n) for n in (5, 7, 8, 4)] == [False, False, True, True]
    seconds, steps = timer.update_last_triggered_step(8)
    assert (steps, seconds is None) == (3, False)
    timer.reset()
    assert timer.should_trigger_for_step(8)
    slow, fast = train.SecondOrStepTimer(3600.0), train.SecondOrStepTimer(1e-9)
    for one in (slow, fast):
        one.update_last_triggered_step(1)
    assert not slow.should_trigger_for_step(9)
    assert fast.should_trigger_for_step(2)
    assert not fast.should_trigger_for_step(1)
    for bad in ((None, None), (1.0, 1), (0.0, None), (None, -1)):
        with pytest.raises(wf.errors.InvalidArgumentError, match="every_secs or every_steps"):
            train.SecondOrStepTimer(*bad)
    with pytest.raises(wf.errors.InvalidArgumentError, match="num_steps or last_step"):
        train.StopAtStepHook()


def test_global_step() -> None:
    graph = wf.Graph("steps")
    with graph.as_default():
        assert train.get_global_step() is None
        with pytest.raises(wf.errors.FailedPreconditionError, match="get_or_create_global_step"):
            train.MonitoredTrainingSession(hooks=[train.StopAtStepHook(1)])
        with wf.name_scope("inner"):
            step = train.get_or_create_global_step()
        assert (step.name, step.dtype, step.trainable) == ("global_step", wf.int64, False)
        assert train.get_or_create_global_step() is train.get_global_step(graph) is step
        with pytest.raises(wf.errors.AlreadyExistsError):
            train.create_global_step()
    other = wf.Graph("other")
    made = train.get_or_create_global_step(other)
    assert other.variables == [made]
    with wf.Session(graph=other) as session:
        session.run(wf.global_variables_initializer())
        assert train.global_step(session, made) == 0
    with wf.Graph("odd").as_default():
        wf.Variable(1.0, name="global_step")
        with pytest.raises(wf.errors.TypeRuleError, match="an integer without axes"):
            train.get_global_step()


def test_creator_asks_for_values_after_a_failed_precondition() -> None:
    graph, *_ = model()
    scaffold = train.Scaffold()
    with graph.as_default():
        scaffold.finalize(graph, remote=False, saves=False)
    with wf.Session(graph=graph) as session:
        error = wf.errors.FailedPreconditionError("w has no value")
        assert not SessionCreator(graph, scaffold).is_lost(error, session)
        remote = SessionCreator(graph, scaffold, master="tcp://127.0.0.1:1")
        assert remote.is_lost(error, session)
        session.run(scaffold.init_op)
        assert not remote.is_lost(error, session)
        assert not remote.is_lost(ValueError(), session)
