// Lets a run end in order when it is asked to: SIGINT and SIGTERM are noted,
// the training loop stops at the next micro-batch and what is on disk is
// removed on the way out. The second such signal ends the process at once;
// what it leaves is reclaimed by the next run on the same path.
#pragma once

#include "absl/status/status.h"

namespace train_gpt {

// Begins to note them, except one that the process was started to ignore.
// Once, by main.
void NoteInterrupts();

// The signal that came, or 0. Thread-safe.
int InterruptSignal();

// Cancelled, naming the signal, once one came.
absl::Status CheckNotInterrupted();

}  // namespace train_gpt
