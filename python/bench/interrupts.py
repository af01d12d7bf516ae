"""How soon Ctrl-C ends a call: from the signal to the exception, at moments spread over a build.

    python interrupts.py MODEL [--params PARAMS] [--moments N]

Weights that no file gives are random. Prints the longest and the median time by phase of the build, and whether a kernel that was finished is lost.
"""

import argparse
import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time

import numpy as np

import resat as rs


def interrupted(mod, after, cache):
    """Seconds from a signal, so long after the build began, to the exception, and the phase; none where the build was done before."""
    phases, sent = ["types"], []

    def kill():
        sent.append((time.perf_counter(), phases[-1]))
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, kill)
    try:
        timer.start()
        rs.build(mod, cache=cache, progress=phases.append)
        timer.cancel()
        timer.join()
        time.sleep(0.05)
        return None
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0][0], sent[0][1].partition("(")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--params")
    parser.add_argument("--moments", type=int, default=12)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mod = rs.load(args.model, args.params)
    rng, types = np.random.default_rng(0), dict(mod["main"].params)
    mod = mod.bind({n: rng.standard_normal(types[n].shape).astype(types[n].dtype) for n in mod.unbound_weights()})
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as whole:
        rs.build(mod, cache=whole)
    seconds = time.perf_counter() - begin
    waits = {}
    for i in range(args.moments):
        with tempfile.TemporaryDirectory() as folder:
            found = interrupted(mod, seconds * (i + 0.5) / args.moments, folder)
            rs._resat.wait_for_calls(60.0)
            kept = len(list(pathlib.Path(folder).glob("objects/[!.]*")))
        if found is not None:
            waits.setdefault(found[1].split()[0], []).append(found[0])
            print(f"  in `{found[1]}`: {1e3 * found[0]:.0f} ms, {kept} kernels kept")
    print(f"a build of {seconds:.1f} s, ended at {sum(map(len, waits.values()))} moments:")
    for phase, times in waits.items():
        print(f"  {phase}: {1e3 * max(times):.0f} ms at most, {1e3 * statistics.median(times):.0f} ms in the middle")


if __name__ == "__main__":
    main()
