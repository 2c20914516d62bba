#include "examples/train_gpt/interrupt.h"

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

// A handler has nowhere else to write to.
volatile std::sig_atomic_t interrupt_signal = 0;

void Note(int signal) { interrupt_signal = signal; }

}  // namespace

void NoteInterrupts() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now = {};
    if (sigaction(signal, nullptr, &now) != 0) continue;
    if (now.sa_handler == SIG_IGN) continue;  // as nohup and shells ask
    struct sigaction note = {};
    note.sa_handler = Note;
    note.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    sigemptyset(&note.sa_mask);
    sigaction(signal, &note, nullptr);
  }
}

int InterruptSignal() { return interrupt_signal; }

absl::Status CheckNotInterrupted() {
  const int signal = InterruptSignal();
  if (signal == 0) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat("interrupted: SIG", sigabbrev_np(signal)));
}

}  // namespace train_gpt
