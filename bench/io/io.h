// `terrace-bench io`: what the I/O engine and its queue reach beside the least
// that moves the same bytes of the same file in the same process, beside
// peers, and with a small demand behind large transfers.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

// Flags: --path DIR[,DIR...] (.), --size (1G), --rounds (5), --samples (1000,
// demand reads), --engine auto|uring|threads, --sections engines,sizes,...
// (all), --peer fio, --gate SECONDS (10; 0: none), --json, --report FILE
// (HTML), --markdown FILE, --results DIR (writes DIR/<date>-io.md).
absl::Status RunIoBenchmark(const Flags& flags);

}  // namespace terrace::bench
