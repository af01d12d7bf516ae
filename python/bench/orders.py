"""All orders of five passes over a model, by threads and on a Dask cluster of two workers, one of which is killed in the middle.

    python orders.py MODEL [--params PARAMS] [--kill]

Prints how long each exploration took, and whether both found the same programs.
"""

import argparse
import os
import signal
import time

import distributed

import resat as rs

PASSES = ["SimplifyInference", "FoldScaleAxis", "AlterOpLayout", "FoldConstant", "SimplifyExpr"]


def programs(found):
    return {o["name"]: o["program"] for o in found.orders}


def cluster():
    options = {"nthreads": 1, "host": "127.0.0.1", "dashboard": False}
    kinds = (("a", "compile"), ("b", "compile"), ("one", "measure"))
    workers = {name: {"cls": distributed.Nanny, "options": {**options, "resources": {kind: 1}}} for name, kind in kinds}
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False, "dashboard_address": None}}
    return distributed.SpecCluster(scheduler=scheduler, workers=workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--params")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--measure-seconds", type=float, default=0.05)
    args = parser.parse_args()
    mod = rs.load(args.model, args.params)
    options = {"measure_seconds": args.measure_seconds, "threads": 1}
    begin = time.perf_counter()
    threads = rs.explore(mod, PASSES, workers=2, **options)
    print(f"threads: {len(threads.orders)} orders, {threads.programs} programs, {time.perf_counter() - begin:.1f} s")
    with cluster() as c, distributed.Client(c) as client:
        client.wait_for_workers(3, timeout=60)
        resources = {a: w["resources"] for a, w in client.scheduler_info(n_workers=-1)["workers"].items()}
        pids = [pid for a, pid in client.run(os.getpid).items() if "compile" in resources[a]][:1]

        def progress(phase, done, total):
            if args.kill and phase == "passes" and done >= 10 and pids:
                print("killing a worker")
                os.kill(pids.pop(), signal.SIGKILL)

        begin = time.perf_counter()
        dask = rs.explore(
            mod,
            PASSES,
            workers=client.get_executor(resources={"compile": 1}),
            measurer=client.get_executor(resources={"measure": 1}),
            progress=progress,
            **options,
        )
        print(f"dask: {len(dask.orders)} orders, {dask.programs} programs, {time.perf_counter() - begin:.1f} s")
    print("the same programs" if programs(dask) == programs(threads) else "OTHER PROGRAMS")
    print("all measured" if all(o["median_s"] for o in dask.orders) else "SOME NOT MEASURED")


if __name__ == "__main__":
    main()
