#!/usr/bin/env python3
"""The bars of the spine, measured on train_gpt: bit-identity over budgets,
paths, engines and types; peak memory beside the stateless optimizer; bytes
per parameter and step, counted by the engine and by the kernel.

  bench/spine.py [--binary build/release/bin/train_gpt] [--dir DIR]
                 [--rows identity,memory,traffic,width896] [--out FILE]

Prints one table and exits with 1 when a row misses its bar.
"""
import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20


def run(binary, directory, paths, flags):
    """Runs train_gpt; returns its JSON, its peak RSS and /proc/self/io."""
    folders = []
    for index in range(paths):
        folder = os.path.join(directory, "path%d" % index)
        os.makedirs(folder, exist_ok=True)
        folders += ["--nvme-path", folder]
    out = os.path.join(directory, "run.json")
    command = [binary, "--json", out] + flags + folders
    process = subprocess.Popen(command, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    text, outside = "", []
    for line in process.stdout:
        text += line
        if line.startswith("step "):
            outside.append(block_traffic(process.pid))
    if process.wait() != 0:
        sys.exit("%s\n%s\nexit code %d" % (" ".join(command), text,
                                           process.returncode))
    with open(out) as file:
        result = json.load(file)
    result["outside"] = outside
    return result


def block_traffic(pid):
    """Bytes that a process has read from and written to the block layer."""
    with open("/proc/%d/io" % pid) as file:
        count = dict(line.split(": ") for line in file)
    return int(count["read_bytes"]), int(count["write_bytes"])


class Table:
    def __init__(self):
        self.lines = []
        self.missed = 0

    def row(self, name, measured, bar, met):
        line = "| %s | %s | %s | %s |" % (name, measured, bar,
                                          "met" if met else "MISSED")
        self.missed += not met
        self.lines.append(line)
        print(line, flush=True)


def identity(table, run_here):
    for dtype in ("fp32", "bf16"):
        for budget in ("25%", "10%"):
            for paths in (1, 2):
                for engine in ("uring", "threads"):
                    result = run_here(paths, [
                        "--size", "tiny", "--steps", "30", "--verify",
                        "--dtype", dtype, "--memory-budget", budget,
                        "--io-engine", engine])
                    verify = result["verify"]
                    table.row("identity %s, %s, %d paths, %s" %
                              (dtype, budget, paths, engine),
                              "%s; LibTorch: loss %.1e, parameters %.1e" % (
                                  verify["reference"],
                                  verify["libtorch"]["max_loss_difference"],
                                  verify["libtorch"]
                                  ["parameter_l2_difference"]),
                              "identical; 1e-4, 1e-4",
                              verify["reference"] == "identical" and
                              verify["libtorch"]["max_loss_difference"]
                              <= 1e-4 and
                              verify["libtorch"]["parameter_l2_difference"]
                              <= 1e-4)


def memory(table, run_here):
    for size in ("mini", "small"):
        shape = ["--size", size, "--batch", "1", "--seq", "128", "--steps",
                 "4"]
        plain = run_here(0, shape + ["--optimizer", "sgd"])
        ours = run_here(1, shape + ["--memory-budget", "10%"])
        extra = ours["rss_peak_bytes"] - plain["rss_peak_bytes"]
        bar = ours["budget_bytes"] + 64 * MIB
        table.row("arena, %s, 10%%" % size,
                  "%.1f MiB" % (ours["arena_peak_bytes"] / MIB),
                  "budget, %.1f MiB" % (ours["budget_bytes"] / MIB),
                  ours["arena_peak_bytes"] <= ours["budget_bytes"])
        table.row("peak RSS above sgd, %s, 10%%" % size,
                  "%.1f MiB" % (extra / MIB),
                  "budget + 64 MiB = %.1f MiB" % (bar / MIB), extra <= bar)


def width896(table, run_here):
    result = run_here(1, ["--layers", "13", "--width", "896", "--heads", "14",
                          "--vocab", "256", "--context", "1024", "--batch",
                          "1", "--seq", "128", "--steps", "4",
                          "--memory-budget", "10%"])
    share = result["rss_peak_bytes"] / result["parameters"]
    table.row("peak RSS, 13 x 896, fp32, 10%%, %d parameters" %
              result["parameters"], "%.2f B/parameter" % share,
              "14 B/parameter", share <= 14)


def traffic(table, run_here):
    cases = (("mini", "fp32", 8, 0.02), ("small", "fp32", 8, 0.005),
             ("mini", "bf16", 12, 0.02), ("small", "bf16", 12, 0.005))
    for size, dtype, state, slack in cases:
        result = run_here(2, ["--size", size, "--batch", "1", "--seq", "128",
                              "--steps", "12", "--dtype", dtype,
                              "--memory-budget", "10%"])
        count = result["parameters"]
        kept = ((result["budget_bytes"] - result["window_bytes"]) /
                result["state_bytes"])
        least = 0.9 * kept
        for name, key in (("read", "bytes_read"), ("written",
                                                   "bytes_written")):
            steps = result[key][1:]
            mean = sum(steps) / len(steps) / count
            bar = state * (1 - least) * (1 + slack)
            table.row("%s, %s %s, from step 2" % (name, size, dtype),
                      "%.3f B/parameter" % mean, "<= %.3f" % bar, mean <= bar)
        # The kernel counts at submission, the engine at completion: apart by
        # what is in flight when a step ends.
        for index, (name, key) in enumerate((("reads", "bytes_read"),
                                             ("writes", "bytes_written"))):
            engine = sum(result[key][1:])
            kernel = result["outside"][-1][index] - result["outside"][0][index]
            share = kernel / engine
            table.row("kernel's count of %s / engine's, %s %s" %
                      (name, size, dtype), "%.4f" % share, "1 +- 0.01",
                      abs(share - 1) <= 0.01)
        table.row("window, %s %s" % (size, dtype),
                  "%.3f of the budget" % (result["window_bytes"] /
                                          result["budget_bytes"]),
                  "<= 0.5",
                  2 * result["window_bytes"] <= result["budget_bytes"])


ROWS = {"identity": identity, "memory": memory, "width896": width896,
        "traffic": traffic}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/release/bin/train_gpt")
    parser.add_argument("--dir", default=None, help="a folder on the disk")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--out", default=None, help="the table, as Markdown")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="spine-", dir=arguments.dir)
    table = Table()
    header = ["# The spine, %s" % datetime.date.today(), "",
              "`bench/spine.py --rows %s` on %s, %d cores" %
              (arguments.rows, platform.machine(), os.cpu_count()), "",
              "| row | measured | bar | |", "|---|---|---|---|"]
    print("\n".join(header), flush=True)

    def run_here(paths, flags):
        return run(arguments.binary, directory, paths, flags)

    try:
        for name in arguments.rows.split(","):
            ROWS[name](table, run_here)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write("\n".join(header + table.lines) + "\n")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
