// infer_gpt: reads text with a model larger than its memory; see --help. The
// exit code is 0 when all went well, 2 for a wrong command line, 1 for
// everything else.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "examples/infer_gpt/infer_flags.h"
#include "examples/infer_gpt/infer_run.h"

namespace {

int Fail(int code, const std::string& message) {
  // LibTorch's messages go on with a stack trace; one line says what is wrong.
  absl::FPrintF(stderr, "infer_gpt: %s\n",
                message.substr(0, message.find('\n')));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<infer_gpt::Flags> flags =
      infer_gpt::ParseFlags(arguments);
  if (!flags.ok()) return Fail(2, std::string(flags.status().message()));
  if (flags->help) {
    absl::PrintF("%s", infer_gpt::Usage());
    return 0;
  }
  try {
    const absl::Status status = infer_gpt::Run(*flags);
    if (!status.ok()) return Fail(1, std::string(status.message()));
  } catch (const std::exception& error) {
    return Fail(1, error.what());
  }
  return 0;
}
