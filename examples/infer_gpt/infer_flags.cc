#include "examples/infer_gpt/infer_flags.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "examples/train_gpt/command_line/flag_values.h"

namespace infer_gpt {
namespace {

using train_gpt::Dtype;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

struct FlagSpec {
  std::string name;   // with its dashes
  std::string value;  // what it takes; empty: it is a switch
  std::string help;
  std::function<absl::Status(absl::string_view text, Flags*)> set;
};

FlagSpec IntegerFlag(const std::string& name, int64_t least, int64_t most,
                     const std::string& help, int64_t Flags::*field) {
  return {name, "N", help,
          [=](absl::string_view text, Flags* flags) -> absl::Status {
            auto value = train_gpt::ParseInteger(name, text, least, most);
            if (value.ok()) flags->*field = *value;
            return value.status();
          }};
}

FlagSpec TextFlag(const std::string& name, const std::string& value,
                  const std::string& help, std::string Flags::*field) {
  return {name, value, help,
          [=](absl::string_view text, Flags* flags) -> absl::Status {
            if (text.empty()) {
              return absl::InvalidArgumentError(
                  absl::StrCat(name, " takes ", value, ", not an empty text"));
            }
            flags->*field = std::string(text);
            return absl::OkStatus();
          }};
}

absl::Status SetSize(absl::string_view text, Flags* flags) {
  auto shape = train_gpt::PresetShape(text);
  if (shape.ok()) flags->shape = *shape;
  return shape.status();
}

absl::Status SetDtype(absl::string_view text, Flags* flags) {
  if (text != "fp32" && text != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype is fp32|bf16, not '", text, "'"));
  }
  flags->dtype = text == "fp32" ? Dtype::kFloat32 : Dtype::kBFloat16;
  return absl::OkStatus();
}

absl::Status SetSeed(absl::string_view text, Flags* flags) {
  auto seed = train_gpt::ParseInteger("--seed", text, 0, kMost);
  if (seed.ok()) flags->seed = static_cast<uint64_t>(*seed);
  return seed.status();
}

absl::Status SetBudget(absl::string_view text, Flags* flags) {
  flags->budget = {};
  if (absl::ConsumeSuffix(&text, "%")) {
    auto percent = train_gpt::ParseNumber("--memory-budget", text, 0.001, 1000);
    if (percent.ok()) flags->budget.percent = *percent;
    return percent.status();
  }
  auto bytes = train_gpt::ParseBytes("--memory-budget", text);
  if (bytes.ok()) flags->budget.bytes = *bytes;
  return bytes.status();
}

absl::Status AddPath(absl::string_view text, Flags* flags) {
  if (text.empty()) {
    return absl::InvalidArgumentError("--nvme-path takes a path");
  }
  flags->nvme_paths.emplace_back(text);
  return absl::OkStatus();
}

FlagSpec SwitchFlag(const std::string& name, const std::string& help,
                    bool Flags::*field) {
  return {name, "", help, [=](absl::string_view, Flags* flags) {
            flags->*field = true;
            return absl::OkStatus();
          }};
}

std::vector<FlagSpec> AllFlags() {
  return {
      {"--size", "PRESET",
       "random weights: tiny (3.1M parameters, the default), mini (30M), small "
       "(124M), medium (355M), large (774M)",
       SetSize},
      {"--dtype", "fp32|bf16", "of random weights", SetDtype},
      {"--seed", "N", "of random weights, and of which text is read", SetSeed},
      TextFlag("--checkpoint", "DIR",
               "the weights of a checkpoint of train_gpt's --save instead",
               &Flags::checkpoint),
      TextFlag("--data", "FILE|FOLDER",
               "text, one token a byte; or .bin files of uint16 tokens; by "
               "default LibTorch's own headers",
               &Flags::data),
      IntegerFlag("--rows", 1, 65536, "rows of text in a pass", &Flags::rows),
      IntegerFlag("--seq", 1, 1 << 20,
                  "tokens in a row, at most the model's context; by default 64",
                  &Flags::seq),
      IntegerFlag("--passes", 1, 1000000,
                  "forward passes; each adds the likeliest next token to every "
                  "row, whose first one goes",
                  &Flags::passes),
      IntegerFlag("--threads", 1, 4096, "by default every core allowed",
                  &Flags::threads),
      {"--memory-budget", "BYTES|N%",
       "of the weights in memory, e.g. 64MiB, or 10% of them (also without "
       "this); a share is raised to the least that works",
       SetBudget},
      {"--nvme-path", "PATH",
       "where the weights are: a directory, an empty file or a block device; "
       "may be given several times; must exist",
       AddPath},
      SwitchFlag("--in-memory", "all weights in memory, as LibTorch has them",
                 &Flags::in_memory),
      TextFlag("--json", "FILE", "write the report there", &Flags::json),
      SwitchFlag("--help", "this text", &Flags::help),
  };
}

absl::Status UnknownFlag(const std::string& name,
                         const std::vector<FlagSpec>& specs) {
  std::vector<std::string> known;
  for (const FlagSpec& spec : specs) known.push_back(spec.name);
  const std::string near = train_gpt::NearestName(name, known);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag '", name, "'",
      near.empty() ? "; see --help" : absl::StrCat("; did you mean ", near)));
}

// What says nothing together.
absl::Status Check(const Flags& flags, const std::set<std::string>& given) {
  if (!flags.checkpoint.empty()) {
    for (const char* const name : {"--size", "--dtype"}) {
      if (!given.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is of random weights; those of --checkpoint have theirs"));
    }
  }
  if (!flags.in_memory && flags.nvme_paths.empty()) {
    return absl::InvalidArgumentError(
        "--nvme-path is needed: where are the weights to be? Or --in-memory");
  }
  for (const char* const name : {"--nvme-path", "--memory-budget"}) {
    if (!flags.in_memory || !given.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--in-memory and ", name, " together"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments) {
  const std::vector<FlagSpec> specs = AllFlags();
  Flags flags;
  flags.shape = *train_gpt::PresetShape("tiny");
  std::set<std::string> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    const auto spec =
        std::find_if(specs.begin(), specs.end(),
                     [&](const FlagSpec& s) { return s.name == name; });
    if (spec == specs.end()) return UnknownFlag(name, specs);
    given.insert(name);
    std::string text;
    if (!spec->value.empty()) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " needs a value: ", spec->value));
      }
      text = arguments[++i];
    }
    const absl::Status status = spec->set(text, &flags);
    if (!status.ok()) return status;
    if (flags.help) return flags;
  }
  const absl::Status status = Check(flags, given);
  if (!status.ok()) return status;
  return flags;
}

std::string Usage() {
  std::string text =
      "infer_gpt: reads text with a GPT-2 style model whose weights are larger "
      "than the\nmemory that they have, and goes on with the likeliest "
      "tokens.\n\n";
  for (const FlagSpec& spec : AllFlags()) {
    absl::StrAppendFormat(&text, "  %-26s %s\n",
                          absl::StrCat(spec.name, " ", spec.value), spec.help);
  }
  return text;
}

}  // namespace infer_gpt
