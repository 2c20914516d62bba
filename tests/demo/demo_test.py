#!/usr/bin/env python3
"""Runs scripts/demo, as a new user would, and checks what it left and wrote.

The bounds are arithmetic on the report's own sizes, none of Terrace's code.
Standard library only; run by `scripts/test demo`. Needs 1 GiB of disk below
build/ and 2 GiB of memory; three minutes after the release build.
"""

import json
import math
import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
LIMIT_SECONDS = 1800  # the build included


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
        cls.directory = tempfile.mkdtemp(prefix="demo-test-",
                                         dir=os.path.join(ROOT, "build"))
        environment = dict(os.environ, TERRACE_DEMO_DIR=cls.directory)
        run = subprocess.run([os.path.join(ROOT, "scripts", "demo")],
                             env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True,
                             timeout=LIMIT_SECONDS, check=False)
        cls.code, cls.output = run.returncode, run.stdout
        print(cls.output, flush=True)
        cls.report = {}
        path = os.path.join(cls.directory, "demo.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                cls.report = json.load(file)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.directory, ignore_errors=True)

    def test_exit_code_is_the_verdicts(self):
        self.assertEqual(self.code, 0, self.output)
        self.assertEqual(self.report["verify"]["reference"], "identical")

    def test_state_is_several_times_the_budget(self):
        report = self.report
        self.assertGreaterEqual(report["parameters"], 30_000_000)
        # fp32: two moments of four bytes.
        self.assertEqual(report["state_bytes"], 8 * report["parameters"])
        self.assertGreaterEqual(report["state_bytes"],
                                4 * report["budget_bytes"])
        self.assertLessEqual(report["arena_peak_bytes"],
                             report["budget_bytes"])
        self.assertLessEqual(2 * report["window_bytes"],
                             report["budget_bytes"])

    def test_the_output_says_what_the_disk_holds_and_claims_no_share(self):
        self.assertRegex(self.output,
                         r"on disk: \S+ MiB for the state and its headers on 2 "
                         r"paths, \S+ MiB for --verify's copy")
        rate = [line for line in self.output.splitlines()
                if "disk in the optimizer" in line]
        self.assertEqual(len(rate), 1)
        self.assertNotIn("%", rate[0])

    def test_it_learns(self):
        losses = self.report["losses"]
        self.assertEqual(len(losses), 30)
        # An untrained model of 256 bytes guesses: ln 256.
        self.assertAlmostEqual(losses[0], math.log(256), delta=0.5)
        self.assertLess(sum(losses[-5:]) / 5, losses[0] - 1)

    def test_libtorch_agrees(self):
        libtorch = self.report["verify"]["libtorch"]
        self.assertLessEqual(libtorch["max_loss_difference"], 1e-4)
        self.assertLessEqual(libtorch["parameter_l2_difference"], 1e-4)

    def test_traffic_is_the_state_less_what_stays(self):
        report = self.report
        window = report["window_bytes"]
        least_resident = 0.9 * (report["budget_bytes"] - window)
        most = (report["state_bytes"] - least_resident) * 1.02
        least = report["state_bytes"] - report["budget_bytes"]
        self.assertEqual(report["bytes_read"][0], 0)  # made, not read
        # A window may be read for the next step, and a write end in it: over
        # all of them both come even.
        read = report["bytes_read"][1:]
        written = report["bytes_written"]
        for bytes_read in read:
            self.assertLessEqual(bytes_read, most + window)
            self.assertGreater(bytes_read, least - window)
        self.assertLessEqual(sum(read), most * len(read))
        self.assertGreater(sum(read), least * len(read))
        self.assertLessEqual(sum(written), most * len(written))

    def test_nothing_is_left_on_the_paths(self):
        for path in ("a", "b"):
            jobs = [name for name in os.listdir(
                os.path.join(self.directory, path))
                if os.path.isdir(os.path.join(self.directory, path, name))]
            self.assertEqual(jobs, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
