"""Runtimes that take turns on one model, each in a process of its own, and what the machine was like at each turn.

Where two virtual cores lie changes within seconds: on two cores that share a cache, on two that do not, or on the hardware threads of one core. A program of
two threads takes up to twice as long in one state as in another, so that medians over all turns compare states, not runtimes. The state is measured
(`resat machine --together`) before and after each turn. Turns during which it changed, or something else ran, are *disturbed*; the others are
compared within one state: rounds go on until every runtime has enough turns there. With one thread, a turn is disturbed where the core computes less
than nine tenths of the most that was seen in any.
"""
import json, os, signal, statistics, subprocess, sys, time

MOST = 4  # times as many rounds as asked for, at most
FULL_SPEED = 0.9


def busy():
    """Seconds of processor time that the machine has spent so far, whoever had them."""
    cores = [list(map(int, l.split()[1:])) for l in open("/proc/stat") if l.startswith("cpu") and l[3].isdigit()]
    return sum(sum(c[:3]) + sum(c[5:7]) for c in cores) / os.sysconf("SC_CLK_TCK")


class Ours:
    """`resat bench`, a process a turn. What it compiles it keeps, so that turns only load it."""

    def __init__(self, command):
        self.command, self.seconds = command, None
        subprocess.run([*command, "--repeat", "2"], check=True, stdout=subprocess.DEVNULL)

    def run(self, seconds):
        repeat = max(3, int(seconds / self.seconds)) if self.seconds else 5
        done = subprocess.run([*self.command, "--repeat", str(repeat)], check=True, capture_output=True, text=True)
        times = json.loads(done.stdout)["latencies_s"]
        self.seconds = statistics.median(times)
        return times

    def end(self):
        pass


class Rival:
    """A worker of the rivals' bench.py, stopped while others run."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{' '.join(command)}: it does not run")
        self.process.send_signal(signal.SIGSTOP)

    def run(self, seconds):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self.process.args))}: it ended")
        times = json.loads(line)
        self.process.send_signal(signal.SIGSTOP)
        return times

    def end(self):
        self.process.kill()
        self.process.wait()


def in_turn(resat, script, corpus, models, model, runtimes, threads, rounds, seconds, params, more=()):
    """A row for each runtime, of its turns in the state of the machine in which all had the most; `script` is the rivals' bench.py, `params` gives the file of
    weights of a folder of the corpus, `more` are further arguments of resat's."""
    pinned = ["taskset", "-c", ",".join(map(str, range(threads)))]
    together = [*pinned, resat, "machine", "--together", "--json"]
    state = lambda: json.loads(subprocess.run(together, check=True, capture_output=True, text=True).stdout)
    sides, all_turns, taken = {}, [], 0
    try:
        for rt in runtimes:
            if rt.startswith("resat"):
                folder = corpus / (model + rt[len("resat"):])
                command = [resat, "bench", str(folder / "model.relay"), "--params", str(params(folder)), "--inputs", str(folder / "inputs.npz")]
                sides[rt] = Ours([*pinned, *command, "--threads", str(threads), "--json", *more])
            else:
                sides[rt] = Rival([*pinned, sys.executable, str(script), "--worker", rt, "--models", str(models), "--threads", str(threads), model])
        while taken < rounds or (taken < MOST * rounds and calm(undisturbed(all_turns, threads), runtimes)[1] < rounds):
            for rt, side in sides.items():
                before, work, start = state(), busy(), time.time()
                times = side.run(seconds)
                load = (busy() - work) / (time.time() - start) > threads + 0.3
                all_turns.append((rt, times, before, state(), load))
            taken += 1
    finally:
        for side in sides.values():
            side.end()
    turns = undisturbed(all_turns, threads)
    state, least = calm(turns, runtimes)
    of = {rt: sorted(t for s, r, times in turns if (s, r) == (state, rt) for t in times) for rt in runtimes}
    if not least:
        raise RuntimeError(f"no state of the machine lasted for a turn of each runtime in {taken} rounds")
    median = {rt: statistics.median(times) for rt, times in of.items()}
    best = min((m for rt, m in median.items() if not rt.startswith("resat")), default=None)
    rows = []
    for rt, times in of.items():
        row = {"model": model, "rt": rt, "threads": threads, "median_ms": 1e3 * median[rt], "min_ms": 1e3 * times[0], "p90_ms": 1e3 * times[len(times) * 9 // 10]}
        row |= {"n": len(times), "speed_vs_best_rival": best / median[rt] if best else None, "disturbed": 1 - sum(r == rt for _, r, _ in turns) / taken, "state": state, "turns": least}
        row["states"] = {s: 1e3 * statistics.median(t for q, r, ts in turns if (q, r) == (s, rt) for t in ts) for s in {s for s, r, _ in turns if r == rt}}
        rows.append(row)
        ratio = row["speed_vs_best_rival"] or 0
        print(f"{model:16} {rt:8} t{threads} median {row['median_ms']:9.3f} ms  min {row['min_ms']:9.3f}  p90 {row['p90_ms']:9.3f}  n {row['n']:5}  {ratio:5.2f} x the best rival  disturbed {row['disturbed']:.0%}  {state}", flush=True)
    return rows


def undisturbed(all_turns, threads):
    """Of each turn during which nothing else ran and the machine stayed as it was: the state, the runtime, its times."""
    most = max((s["alone_flops"] for _, _, *states, _ in all_turns for s in states), default=0)
    turns = []
    for rt, times, before, after, load in all_turns:
        steady = before["placement"] == after["placement"]
        if threads == 1:
            steady = min(before["alone_flops"], after["alone_flops"]) >= FULL_SPEED * most
        if steady and not load:
            turns.append((before["placement"] if threads > 1 else "full speed", rt, times))
    return turns


def calm(turns, runtimes):
    """The state in which every runtime had turns, and how many the one with the fewest had; the one with the most of these."""
    count = {state: min(sum((s, r) == (state, rt) for s, r, _ in turns) for rt in runtimes) for state in {s for s, _, _ in turns}}
    return max(count.items(), key=lambda c: c[1], default=(None, 0))
