"""Explorations: the same by threads, processes and Dask; workers lost in the middle; states that resume."""

import concurrent.futures as futures
import json
import multiprocessing
import os
import signal
import time

import pytest

import resat as rs

PASSES = [rs.SimplifyInference(), rs.FoldConstant(), rs.AlterOpLayout(), rs.SimplifyExpr()]


def options(**more):
    return {"measure_seconds": 0.01, "threads": 1, **more}


def programs(exploration):
    """What tells explorations apart but for times: each order's program."""
    return {o["name"]: (o["program"], o["refused"]) for o in exploration.orders}


@pytest.fixture(scope="module")
def alone(cnn):
    return rs.explore(cnn, PASSES, **options())


def test_an_exploration(alone, cnn):
    assert len(alone.orders) == 24 and alone.best["median_s"] > 0 and alone.programs >= 1
    assert "24 orders" in str(alone) and len(alone.to_records()) == 27
    assert "<iframe" in alone._repr_html_()
    assert all(o["difference"] is not None and o["difference"] < 1e-4 for o in alone.orders)


def test_threads_find_the_same(alone, cnn):
    assert programs(rs.explore(cnn, PASSES, workers=2, **options())) == programs(alone)


def test_processes_find_the_same(alone, cnn):
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(2, mp_context=context) as workers, futures.ProcessPoolExecutor(1, mp_context=context) as one:
        made = rs.explore(cnn, PASSES, workers=workers, measurer=one, **options())
    assert programs(made) == programs(alone)
    assert all(o["median_s"] > 0 and o["difference"] < 1e-4 for o in made.orders)


class Noting(futures.ThreadPoolExecutor):
    """Notes what it is given to do."""

    def __init__(self, n):
        super().__init__(n)
        self.seen = []

    def submit(self, fn, /, *args, **kwargs):
        self.seen.append(fn.__name__)
        return super().submit(fn, *args, **kwargs)


def test_workers_compile_and_the_measurer_measures_alone(alone, cnn):
    with Noting(2) as workers, Noting(1) as one:
        made = rs.explore(cnn, PASSES, workers=workers, measurer=one, **options())
    assert programs(made) == programs(alone) and set(workers.seen) == {"_do_pass", "_do_build"} and set(one.seen) == {"_do_measure"}
    # Each different program is compiled once.
    assert workers.seen.count("_do_build") == made.programs
    assert all(o["median_s"] > 0 and o["difference"] < 1e-4 and o["kernels"] > 0 for o in made.orders)


def test_code_that_can_not_leave_its_process_is_made_where_it_is_measured():
    """Programs for the virtual machine: of extents that are not known."""
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(?, 4), float32]) { exp(nn.relu(transpose(transpose(%x)))) }')
    x = [rs.empty((3, 4))]
    want = rs.explore(mod, PASSES[:2], x, **options())
    with Noting(2) as workers, Noting(1) as one:
        made = rs.explore(mod, PASSES[:2], x, workers=workers, measurer=one, **options())
    assert programs(made) == programs(want) and all(o["median_s"] > 0 and o["difference"] == 0 for o in made.orders)


class OutOfInk(rs.ExternalCompiler):
    name = "explored_out_of_ink"

    def supports(self, op, attrs, args, result):
        return op == "nn.relu"

    def compile(self, region):
        raise ValueError("out of ink")


@rs.module_pass("outside", version="1")
def outside(mod):
    return rs.partition_for(mod, "explored_out_of_ink")


@pytest.mark.parametrize("crew", [False, True])
def test_what_can_not_be_compiled_is_refused_and_not_slow(cnn, tmp_path, crew):
    if "explored_out_of_ink" not in rs.compilers():
        rs.register_compiler(OutOfInk())
    state = tmp_path / "state.jsonl"
    with Noting(2) as workers, Noting(1) as one:
        who = {"workers": workers, "measurer": one} if crew else {}
        found = rs.explore(cnn, [rs.optional(outside), rs.FoldConstant()], state=state, **who, **options())
        lines = state.read_text()
        again = rs.explore(cnn, [rs.optional(outside), rs.FoldConstant()], state=state, **who, **options())
    assert programs(again) == programs(found) and state.read_text() == lines
    for order in found.orders:
        if "outside" in order["name"]:
            assert "out of ink" in order["refused"]["reason"] and order["median_s"] is None and order["regret"] is None
        else:
            assert order["refused"] is None and order["median_s"] > 0


def test_workers_of_another_kind_are_refused(cnn, monkeypatch):
    """Code for one machine must not be made, or measured, on another."""
    import pickle

    from resat import _explore

    sent = _explore._sent

    def elsewhere(what):
        config, given, machine = what
        return sent((config, given, machine + " and more"))

    monkeypatch.setattr(_explore, "_sent", elsewhere)
    with futures.ThreadPoolExecutor(1) as workers, pytest.raises(rs.Refused, match="where machines differ"):
        rs.explore(cnn, PASSES[:2], workers=workers, **options())
    assert pickle.loads(sent((1, 2, 3))) == (1, 2, 3)


def test_a_measurer_that_is_lost_begins_again(alone, cnn):
    class Losing(Noting):
        def submit(self, fn, /, *args, **kwargs):
            self.seen.append(fn.__name__)
            if len(self.seen) < 3:
                future = futures.Future()
                future.set_exception(futures.BrokenExecutor())
                return future
            return futures.ThreadPoolExecutor.submit(self, fn, *args, **kwargs)

    with Losing(2) as workers, Losing(1) as one:
        made = rs.explore(cnn, PASSES, workers=workers, measurer=one, **options())
    assert programs(made) == programs(alone) and all(o["median_s"] > 0 for o in made.orders)

    class Gone(Noting):
        def submit(self, fn, /, *args, **kwargs):
            future = futures.Future()
            future.set_exception(futures.BrokenExecutor())
            return future

    with Gone(1) as workers, pytest.raises(rs.Refused, match="lost 4 times"):
        rs.explore(cnn, PASSES, workers=workers, **options())


def test_ray(alone, cnn):
    """A local Ray: passes and code by two workers, measured by this process' own measurer."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        workers = rs.RayExecutor(num_cpus=1)
        assert workers._max_workers == 2
        with futures.ThreadPoolExecutor(1) as one:
            made = rs.explore(cnn, PASSES, workers=workers, measurer=one, **options())
        assert programs(made) == programs(alone) and all(o["median_s"] > 0 for o in made.orders)
        # A worker that dies takes its task with it, and no more.
        lost = workers.submit(os._exit, 1)
        with pytest.raises(Exception) as e:
            lost.result(timeout=60)
        from resat import _explore

        assert _explore._is_lost(e.value), type(e.value).__mro__
    finally:
        ray.shutdown()


def test_a_state_resumes(alone, cnn, tmp_path):
    state = tmp_path / "state.jsonl"
    first = rs.explore(cnn, PASSES, state=state, workers=2, **options())
    lines = state.read_text().splitlines()
    again = rs.explore(cnn, PASSES, state=state, **options())
    assert programs(again) == programs(first) == programs(alone)
    assert again.data["resumed"] == len(lines) - 1 and state.read_text().splitlines() == lines
    # A state without its last part: what is there is not done again.
    kept = len(lines) // 2
    state.write_text("\n".join(lines[:kept]) + "\n")
    with futures.ThreadPoolExecutor(2) as workers:
        rest = rs.explore(cnn, PASSES, state=state, workers=workers, **options())
    assert programs(rest) == programs(alone) and rest.data["resumed"] == kept - 1
    with pytest.raises(rs.Refused, match="another exploration"):
        rs.explore(cnn, PASSES, state=state, config=rs.BuildConfig(cost="flops"), **options())


def test_what_was_finished_is_kept_after_ctrl_c(cnn, tmp_path):
    state = tmp_path / "state.jsonl"
    told = []

    def interrupt(phase, done, total):
        told.append(phase)
        if phase == "passes" and done >= 4:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    with pytest.raises(KeyboardInterrupt):
        rs.explore(cnn, PASSES, state=state, progress=interrupt, workers=2, **options())
    kept = len(state.read_text().splitlines()) - 1
    assert kept > 0
    assert rs.explore(cnn, PASSES, state=state, **options()).data["resumed"] == kept


def test_models_in_python_say_what_they_are(cnn, tmp_path):
    with rs.BuildConfig(cost=lambda node: node.flops):
        with pytest.raises(rs.Refused, match="fingerprint"):
            rs.explore(cnn, PASSES, state=tmp_path / "s", **options())
    with pytest.raises(rs.Refused, match="needs a `version`"):
        rs.explore(cnn, [rs.module_pass("mine")(lambda m: m)], state=tmp_path / "s", **options())
    with pytest.raises(rs.Refused, match="unknown: y"):
        rs.explore(cnn, PASSES, {"y": 1}, **options())


@rs.module_pass("twice", version="1")
def twice(mod):
    return rs.FoldConstant()(rs.SimplifyExpr()(mod))


def test_functions_are_passes_of_an_exploration(cnn, tmp_path):
    state = tmp_path / "state.jsonl"
    found = rs.explore(cnn, [twice, rs.SimplifyInference()], state=state, **options())
    assert {o["name"] for o in found.orders} == {"twice, SimplifyInference", "SimplifyInference, twice"}
    assert all(o["refused"] is None and o["difference"] < 1e-4 for o in found.orders)
    again = rs.explore(cnn, [twice, rs.SimplifyInference()], state=state, **options())
    assert again.data["resumed"] > 0 and programs(again) == programs(found)
    other = rs.module_pass("twice", version="2")(lambda mod: mod)
    with pytest.raises(rs.Refused, match="another exploration"):
        rs.explore(cnn, [other, rs.SimplifyInference()], state=state, **options())
    with futures.ThreadPoolExecutor(2) as workers:
        assert programs(rs.explore(cnn, [twice, rs.SimplifyInference()], workers=workers, **options())) == programs(found)
    # To another process, a decorated function goes by its name, and one of no module by its code.
    import pickle

    cloudpickle = pytest.importorskip("cloudpickle")
    assert pickle.loads(pickle.dumps(twice)) is twice
    with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        assert cloudpickle and programs(rs.explore(cnn, [other, rs.SimplifyInference()], workers=workers, **options()))

    def failing(mod):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rs.explore(cnn, [failing, rs.SimplifyInference()], **options())


def test_alternatives_and_subsets(cnn):
    layouts = rs.ConvertLayout("NCHW", to="NHWC|NCHW8c")
    found = rs.explore(cnn, [layouts, rs.optional(rs.FoldConstant())], **options())
    names = {o["name"] for o in found.orders}
    assert len(names) == 6 and {"ConvertLayout[NHWC]", "ConvertLayout[NCHW8c], FoldConstant"} <= names
    same = rs.explore(cnn, ['ConvertLayout(from=NCHW, to="NHWC|NCHW8c")', "FoldConstant?"], **options())
    assert programs(same) == programs(found)
    with pytest.raises(rs.Refused, match="NOPE"):
        rs.ConvertLayout("NCHW", to="NHWC|NOPE")
    with pytest.raises(rs.Refused, match="for explorations"):
        rs.optional(rs.FoldConstant())(cnn)


def test_progress(cnn, capsys, monkeypatch):
    rs.explore(cnn, PASSES[:2], progress=True, **options())
    assert "passes: " in capsys.readouterr().err
    rs.explore(cnn, PASSES[:2], **options())
    assert capsys.readouterr().err == ""
    # In a notebook, one bar that changes.
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what)

    def display(what, display_id):
        shown.append(what)
        return Handle()

    import sys
    import types

    shell = types.SimpleNamespace(has_trait=lambda name: name == "kernel")
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    rs.explore(cnn, PASSES[:2], **options())
    assert any("<progress" in s for s in shown) and shown[-1] == ""
    shown.clear()
    rs.explore(cnn, PASSES[:2], progress=False, **options())
    assert not shown


@pytest.mark.parametrize("killed", [None, "passes", "compiling"])
def test_dask(alone, cnn, tmp_path, killed):
    """A cluster of processes: two workers that compile, one that measures and does nothing else. One worker that compiles is killed."""
    distributed = pytest.importorskip("distributed")
    import dask

    dask.config.set({"distributed.worker.daemon": False, "distributed.scheduler.allowed-failures": 8})
    state = tmp_path / "state.jsonl"
    cluster = distributed.SpecCluster(
        scheduler={"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False, "dashboard_address": None}},
        workers={
            name: {
                "cls": distributed.Nanny,
                "options": {"nthreads": 1, "resources": {what: 1}, "host": "127.0.0.1", "dashboard": False},
            }
            for name, what in (("a", "compile"), ("b", "compile"), ("one", "measure"))
        },
    )
    pids = []

    def progress(phase, done, total):
        if phase == killed and done >= (3 if phase == "passes" else 1) and pids:
            os.kill(pids.pop(), signal.SIGKILL)
            pids.clear()

    with cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(3, timeout=60)
        info = client.run(os.getpid)
        resources = {address: w["resources"] for address, w in client.scheduler_info(n_workers=-1)["workers"].items()}
        pids += [pid for address, pid in info.items() if "compile" in resources[address]][:1]
        assert pids
        workers = client.get_executor(resources={"compile": 1})
        measurer = client.get_executor(resources={"measure": 1})
        made = rs.explore(cnn, PASSES, workers=workers, measurer=measurer, state=state, progress=progress, **options())
        assert not (killed and pids)
    assert programs(made) == programs(alone)
    assert all(o["median_s"] > 0 for o in made.orders)
    # Nothing twice: of each pass over each module one line, and of each program one measurement.
    seen = set()
    for line in state.read_text().splitlines()[1:]:
        record = json.loads(line)
        key = (record["kind"], record.get("pass"), record.get("from"), record.get("program"))
        assert key not in seen
        seen.add(key)
