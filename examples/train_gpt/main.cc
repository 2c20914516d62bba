// train_gpt: trains a GPT-2 style model; see --help. The exit code is 0 when
// all went well, 2 for a wrong command line, 128 and the signal when one asked
// it to stop, 1 for everything else.
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/interrupt.h"
#include "examples/train_gpt/run.h"

namespace {

int Fail(int code, const std::string& message) {
  // LibTorch's messages go on with a stack trace; one line says what is wrong.
  absl::FPrintF(stderr, "train_gpt: %s\n",
                message.substr(0, message.find('\n')));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<train_gpt::Flags> flags =
      train_gpt::ParseFlags(arguments);
  if (!flags.ok()) return Fail(2, std::string(flags.status().message()));
  if (flags->help) {
    absl::PrintF("%s", train_gpt::Usage());
    return 0;
  }
  train_gpt::NoteInterrupts();
  // A write past the largest file allowed is then an error like any other.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const absl::Status status = train_gpt::Run(*flags);
    if (!status.ok()) {
      const int code =
          absl::IsCancelled(status) ? 128 + train_gpt::InterruptSignal() : 1;
      return Fail(code, std::string(status.message()));
    }
  } catch (const std::exception& error) {
    return Fail(1, error.what());
  }
  return 0;
}
