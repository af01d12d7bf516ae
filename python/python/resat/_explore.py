"""Orders of passes, tried and measured, by threads of this process or on any executor."""

from __future__ import annotations

import concurrent.futures as futures
import hashlib
import json
import os
import pickle
import re
import threading
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from . import _resat
from ._config import BuildConfig, current
from ._errors import Refused
from ._module import _of_parts
from ._passes import _FunctionPass, _Optional, as_pass
from ._progress import reporter
from ._resat import Module

__all__ = ["Exploration", "RayExecutor", "explore"]


# Modules on their way: a skeleton, the keys of its constants, and those constants that the other side is not known to have.

_constants: dict[bytes, "_Parts"] = {}

#: A constant's element type, shape and bytes.
_Parts = tuple[str, list[int], bytes]

# How many explorations this process is driving: constants are kept for them, and dropped after the last.
_driving = 0


def _pack(module: Module) -> tuple[str, list[bytes]]:
    """A module's skeleton and its constants' keys; the constants are kept here."""
    text, constants = module.parts()
    return text, _keep(constants)[0]


def _keep(constants: "list[_resat.Constant]") -> "tuple[list[bytes], dict[bytes, _Parts]]":
    """Keeps constants here: their keys, by content, and the constants by these."""
    keys, new = [], {}
    for constant in constants:
        dtype, shape, data = constant.parts()
        made = hashlib.blake2b(f"{dtype} {shape} ".encode(), digest_size=16)
        made.update(data)
        key = made.digest()
        new[key] = _constants.setdefault(key, (dtype, shape, data))
        keys.append(key)
    return keys, new


def _unpack(text: str, keys: list[bytes], known: "dict[bytes, _Parts]") -> Module:
    return _of_parts(text, [known[key] for key in keys])


def _having(keys: Iterable[bytes], sent: "dict[bytes, _Parts]") -> "tuple[dict[bytes, _Parts], list[bytes]]":
    """The constants of these keys that this process has, with what was sent to it, and the keys of the others."""
    _constants.update(sent)
    known = {key: found for key in keys if (found := sent.get(key) or _constants.get(key)) is not None}
    return known, sorted(set(keys) - known.keys())


# What workers do.

_workers: dict[tuple[bytes, int], Any] = {}
_lock = threading.Lock()


def _worker(spec: bytes) -> Any:
    """The worker for an exploration, once for a thread: what its passes share with a call is not for two at once."""
    key = (hashlib.blake2b(spec, digest_size=16).digest(), threading.get_ident())
    with _lock:
        known = _workers.get(key)
    if known is None:
        config, given, machine = pickle.loads(spec)
        settings = config.settings()
        if settings.machine != machine:
            raise Refused(
                f"code is for `{machine}`, but a worker is `{settings.machine}`: where machines differ, say "
                'BuildConfig(target="llvm -mcpu=… -num-cores=…") for the one that measures'
            )
        known = _resat.Worker(settings, {**given, "own": _functions(given["own"])})
        with _lock:
            if len(_workers) > 64:
                _workers.clear()
            if _driving == 0 and not any(of == key[0] for of, _ in _workers):
                # Another exploration has other constants; what this one has in common with them is sent again.
                _constants.clear()
            _workers[key] = known
    return known


def _functions(own: "Sequence[_FunctionPass]") -> list[tuple[str, Any]]:
    return [(p.name, p.function) for p in own]


def _do_pass(spec: bytes, name: str, text: str, keys: list[bytes], sent: dict[bytes, Any]):
    """Runs a pass; or says which constants this process lacks."""
    known, lacking = _having(keys, sent)
    if lacking:
        return ("lacks", lacking)
    outcome, made = _worker(spec).run(name, _unpack(text, keys, known))
    if made is None:
        return ("done", outcome, None, None, None)
    new_text, constants = made.parts()
    new_keys, new = _keep(constants)
    return ("done", outcome, new_text, new_keys, {k: v for k, v in new.items() if k not in known})


def _do_build(spec: bytes, text: str, keys: list[bytes], sent: dict[bytes, Any]):
    """Compiles a program; or says which constants this process lacks. Constants that are folded and packed for the code go with it."""
    known, lacking = _having(keys, sent)
    if lacking:
        return ("lacks", lacking)
    outcome, code = _worker(spec).compile(_unpack(text, keys, known))
    if code is None:
        return ("built", outcome, None, {})
    head, machine_code, constants = code
    new_keys, new = _keep(constants)
    return ("built", outcome, (head, machine_code, new_keys), {k: v for k, v in new.items() if k not in known})


def _do_measure(spec: bytes, programs: "list[_Ready]", inputs: list[Any], sent: dict[bytes, Any]):
    """Measures programs in turns; or says which constants this process lacks. Nothing is compiled but what can't leave the process that
    compiles it."""
    known, lacking = _having({key for p in programs for key in p.keys}, sent)
    if lacking:
        return ("lacks", lacking)
    return ("done", _worker(spec).measure([p.unpacked(known) for p in programs], inputs))


class _Ready(NamedTuple):
    """A program on its way to be measured."""

    digest: str
    outcome: str
    """What compiling it came to."""
    head: "bytes | None"
    """What its code consists of; None where the code can't leave a process, and the program goes as its text."""
    body: Any
    """Machine code, or the program's skeleton."""
    keys: list[bytes]
    """Of its constants."""

    def unpacked(self, known: "dict[bytes, _Parts]") -> tuple[str, Any, "Module | None"]:
        if self.head is None:
            return (self.digest, None, _unpack(self.body, self.keys, known))
        constants = [_resat.constant(*known[key]) for key in self.keys]
        return (self.digest, (self.outcome, (self.head, self.body, constants)), None)


#: A function for workers, its arguments, and the program that it compiles, if it does.
_Task = tuple[Callable[..., Any], tuple, "str | None"]

#: Exceptions that say that a worker is gone, and nothing of the work.
_LOST = ("BrokenProcessPool", "BrokenThreadPool", "BrokenExecutor", "CancelledError", "KilledWorker", "WorkerCrashedError", "NodeDiedError", "CommClosedError")


def _is_lost(error: BaseException) -> bool:
    return any(c.__name__ in _LOST for c in type(error).__mro__)


class _Crew:
    """What the Rust part asks to have work done: passes and code by the workers, measurements by the measurer."""

    def __init__(self, spec: bytes, workers: futures.Executor, measurer: "futures.Executor | None", room: "int | None"):
        self.spec, self.workers, self.measurer = spec, workers, measurer
        self.room = room or 2 * _size(workers)
        self.measures = measurer is not None
        self.pending: dict[futures.Future, tuple[int, _Task]] = {}
        self.ready: dict[str, _Ready] = {}
        self.ended = False

    def _submit(self, number: int, task: "_Task", sent: dict[bytes, Any]) -> None:
        do, arguments, _ = task
        self.pending[_submit(self.workers, do, self.spec, *arguments, sent)] = (number, task)

    def start_pass(self, number: int, name: str, module: Module) -> None:
        self._submit(number, (_do_pass, (name, *_pack(module)), None), {})

    def start_build(self, number: int, program: str, module: Module) -> None:
        self._submit(number, (_do_build, _pack(module), program), {})

    def poll(self):
        """The number of a task that has ended, whether it was a program's, and what came of it, or None where it was lost; nothing after a
        while."""
        done, _ = futures.wait(list(self.pending), timeout=0.2, return_when=futures.FIRST_COMPLETED)
        if not done:
            return None
        future = done.pop()
        number, task = self.pending.pop(future)
        try:
            result = future.result()
        except BaseException as error:
            if _is_lost(error):
                return (number, task[2] is not None, None)
            raise
        if result[0] == "lacks":
            self._submit(number, task, {key: _constants[key] for key in result[1]})
            return None
        if result[0] == "built":
            _, outcome, code, new = result
            _constants.update(new)
            (text, keys), program = task[1], task[2]
            head, body, keys = code if code is not None else (None, text, keys)
            self.ready[program] = _Ready(program, outcome, head, body, keys)
            return (number, True, (outcome, None))
        _, outcome, text, keys, new = result
        if text is None:
            return (number, False, (outcome, None))
        _constants.update(new)
        return (number, False, (outcome, _unpack(text, keys, _constants)))

    def measure(self, programs: list[tuple[str, Module]], inputs: list[Any]):
        assert self.measurer is not None
        packed = [self.ready.pop(digest) for digest, _ in programs]
        sent: dict[bytes, Any] = {}
        for _ in range(8):
            try:
                result = self._wait(_submit(self.measurer, _do_measure, self.spec, packed, inputs, sent))
            except BaseException as error:
                if _is_lost(error):
                    continue
                raise
            if result[0] == "done":
                return result[1]
            sent = {key: _constants[key] for key in result[1]}
        raise RuntimeError("the measuring worker was lost again and again")

    def _wait(self, future: futures.Future) -> Any:
        """The result of a future, unless the exploration is ended meanwhile."""
        while not futures.wait([future], timeout=0.2).done:
            if self.ended:
                future.cancel()
                raise Refused("the exploration was ended while programs were measured")
        return future.result()

    def end(self) -> None:
        self.ended = True
        for future in list(self.pending):
            future.cancel()


def _size(executor: futures.Executor) -> int:
    """How many tasks an executor works on at the same time, as far as it says."""
    known = getattr(executor, "_max_workers", None)
    client = getattr(executor, "_client", None)
    if known is None and client is not None:
        known = sum(client.ncores().values())
    return known or os.cpu_count() or 1


def _submit(executor: futures.Executor, function: Callable[..., Any], *args: Any) -> futures.Future:
    """Begins a call, also one that is equal to another: times differ, and a pass is run again after its worker was lost. Dask's executor would
    take equal calls for one unless they are named apart."""
    if type(executor).__name__ == "ClientExecutor":
        return executor.submit(function, *args, pure=False)
    return executor.submit(function, *args)


class RayExecutor(futures.Executor):
    """Ray as an executor, for `explore(workers=…)`. `options` are those of `ray.remote`, such as `num_cpus=1`."""

    def __init__(self, **options: Any):
        import ray

        if not ray.is_initialized():
            ray.init()
        # What is lost is begun again by who asked for it.
        self._call = ray.remote(**{"max_retries": 0, **options})(_call)
        self._max_workers = int(ray.cluster_resources().get("CPU", 1))

    def submit(self, fn, /, *args, **kwargs):
        return self._call.remote(fn, args, kwargs).future()


def _call(fn, args, kwargs):
    return fn(*args, **kwargs)


class Exploration:
    """What an exploration found."""

    def __init__(self, data: dict[str, Any], page: str, summary: str):
        self.data, self.page, self.summary = data, page, summary

    @property
    def orders(self) -> list[dict[str, Any]]:
        """A dict for each order that was tried: name, order, program, median_s, min_s, p90_s, cost, regret, passes_s, code_s, kernels, refused, …"""
        return self.data["orders"]

    @property
    def saturation(self) -> dict[str, Any]:
        """The same of the one saturation that the orders are compared with."""
        return self.data["saturation"]

    @property
    def baseline(self) -> dict[str, Any]:
        """The same of the program as it was written."""
        return self.data["baseline"]

    @property
    def best(self) -> "dict[str, Any] | None":
        """The order of the least median latency."""
        at = self.data["best"]
        return None if at is None else self.orders[at]

    @property
    def programs(self) -> int:
        """How many different programs came of all of them."""
        return self.data["programs"]

    def to_records(self) -> list[dict[str, Any]]:
        """A record for each order, and for the saturation, the default pipeline and the program as written, for pandas."""
        rows = [("saturation", self.saturation), ("default", self.data["default"]), ("as written", self.baseline)]
        rows += [("order", run) for run in self.orders]
        return [{"kind": kind, **{k: v for k, v in run.items() if k not in ("saturated", "refused")}} for kind, run in rows]

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the page, or where the path ends in `.json` the data."""
        path = os.fspath(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write(json.dumps(self.data, indent=1) if path.endswith(".json") else self.page)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return f"<resat.Exploration of {len(self.orders)} orders, {self.programs} programs>"

    def _repr_html_(self) -> str:
        from ._html import frame

        return frame(self.page)


def explore(
    module: Module,
    passes: "Sequence[Any] | str",
    inputs: "Mapping[str, Any] | Sequence[Any] | None" = None,
    *,
    workers: "futures.Executor | int | None" = None,
    measurer: "futures.Executor | None" = None,
    saturation: "str | None" = None,
    max_orders: int = 720,
    seed: int = 0,
    measure_seconds: float = 2.0,
    threads: "int | None" = None,
    anytime: bool = False,
    state: "str | os.PathLike[str] | None" = None,
    name: str = "module",
    room: "int | None" = None,
    config: "BuildConfig | None" = None,
    progress: "Callable[[str, int, int], None] | bool | None" = None,
) -> Exploration:
    """Tries the orders of some passes, and measures what they give.

    Each order takes the place of the stage `optimize` in the default pipeline. Orders that begin alike share what they begin with, and each
    different program is compiled and measured once, in turns with others.

    - `passes`: passes of the registry, their texts, names of rulesets, or functions made passes by `module_pass`. Of alternatives in an
      argument, `ConvertLayout("NCHW", to="NHWC|NCHW8c")`, each order has one; `optional(pass)` is in some orders only.
    - `inputs`: arrays for the parameters, by name or in order; random ones where none are given.
    - `workers`: who runs the passes: a number of threads, or an executor of `concurrent.futures` (a process pool, Dask's
      `client.get_executor()`, `RayExecutor`). It may be gone in the middle: what was lost is done again, and nothing twice that was finished.
    - `measurer`: an executor of one worker that does nothing else meanwhile. The workers compile then, and it runs what they have compiled.
      Where none is given, this process compiles and measures.
    - `state`: a file where what was found out is kept; an exploration that finds it goes on from there.
    - `room`: so many tasks are under way at the same time; twice the workers where not given.
    - `measure_seconds`: for how long each different program is measured, about.
    - `progress`: a function of a phase, and how much of how much is done; `True` shows a bar, `False` nothing. Where it is not given, notebooks
      show a bar.

    Ctrl-C ends it and keeps the state. A saturation's limit of time is five minutes here where the configuration has the default: what a busy
    machine cuts short would be another program.
    """
    config = current(config)
    if config.edits:
        raise Refused("edits of the default pipeline have no place in an exploration")
    limits = dict(config.limits)
    limits.setdefault("time", 300.0)
    config = config.replaced(limits=limits)
    texts, own = [], []
    for given in [passes] if isinstance(passes, str) else passes:
        made = given if isinstance(given, str) else as_pass(given)
        texts.append(made if isinstance(made, str) else made.text)
        made = made.of if isinstance(made, _Optional) else made
        if isinstance(made, _FunctionPass):
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", made.name):
                raise Refused(f"a pass of an exploration has a name of letters, numbers, `_`, `.` and `-`, not `{made.name}`")
            if state is not None and made.fingerprint() is None:
                raise Refused(f"pass `{made.name}` is a function: where a state is kept, it needs a `version`, a text of all that decides its results")
            own.append(made)
    about = [("rules of the user", "\n".join(text for _, text in config.rules))]
    for what, model in (("cost model", config.cost), ("extractor", config.extractor)):
        if model is None or isinstance(model, str):
            about.append((f"{what} by name", str(model)))
            continue
        print_ = getattr(model, "fingerprint", None)
        if state is not None and print_ is None:
            raise Refused(f"a {what} written in Python needs a method `fingerprint()`, a text of all that decides its results, where a state is kept")
        about.append((f"{what} in Python", print_() if print_ is not None else ""))
    about += [(f"pass {p.name} in Python", p.fingerprint() or "") for p in own]
    given = {
        "members": ", ".join(texts),
        "own": own,
        "saturation": saturation,
        "threads": threads,
        "max_orders": max_orders,
        "seed": seed,
        "measure_seconds": float(measure_seconds),
        "anytime": anytime,
        "state": None if state is None else os.fspath(state),
        "model": name,
        "about": about,
        "workers": workers if isinstance(workers, int) else 1,
    }
    arrays = _inputs(module, inputs)
    crew = None
    if workers is not None and not isinstance(workers, int) or measurer is not None:
        # Each machine by itself would take as many threads as it has cores.
        settings = config.settings()
        if "num-cores" not in config.target:
            config = config.replaced(target=f"{config.target} -num-cores={settings.cores}")
        spec = _sent((config, {**given, "state": None}, config.settings().machine))
        if workers is None or isinstance(workers, int):
            workers = futures.ThreadPoolExecutor(workers or 1)
        crew = _Crew(spec, workers, measurer, room)
    global _driving
    with _lock:
        _driving += 1
    try:
        with reporter(progress) as report:
            here = {**given, "own": _functions(own)}
            data, page, summary = _resat.run_exploration(module, arrays, config.settings(), here, crew, report)
    finally:
        if crew is not None:
            crew.end()
        with _lock:
            _driving -= 1
            if _driving == 0:
                _constants.clear()
    return Exploration(json.loads(data), page, summary)


def _sent(what: Any) -> bytes:
    """What workers are given. Functions that no module has go by cloudpickle, where it is installed (Dask brings it)."""
    try:
        return pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            raise Refused(f"a function can't be sent to workers: {error}; define it in a module, or install cloudpickle") from error
        return cloudpickle.dumps(what)


def _inputs(module: Module, inputs: Any) -> list[Any]:
    """The arrays in order."""
    if inputs is None:
        return module.random_inputs()
    if isinstance(inputs, Mapping):
        names = [name for name, _ in module.signature_of("main")[0]]
        own = module.own_names()[0]
        if own is not None and set(inputs) <= set(own):
            names = own
        strange = [str(k) for k in inputs if k not in names]
        missing = [n for n in names if n not in inputs]
        if strange or missing:
            raise Refused(f"inputs are by the names {', '.join(names)}; unknown: {', '.join(strange) or 'none'}; missing: {', '.join(missing) or 'none'}")
        return [inputs[n] for n in names]
    return list(inputs)
