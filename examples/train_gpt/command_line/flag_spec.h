// What one flag is: its name, what it takes, its line of --help, and how its
// text gets into what the command line says. A field gives the place in the
// draft that the value goes to.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "examples/train_gpt/command_line/flag_values.h"
#include "examples/train_gpt/command_line/flags.h"

namespace train_gpt {

// What the command line says, before presets and defaults are resolved.
struct Draft {
  Flags flags;
  std::string size = "tiny";
  std::optional<int64_t> layers, heads, width, vocab, context, seq;
};

struct FlagSpec {
  std::string name;   // with its dashes
  std::string value;  // what it takes; empty: it is a switch
  std::string help;
  std::function<absl::Status(absl::string_view text, Draft*)> set;
};

template <typename Field>
FlagSpec IntegerFlag(const std::string& name, int64_t least, int64_t most,
                     const std::string& help, Field field) {
  return {name, "N", help,
          [=](absl::string_view text, Draft* draft) -> absl::Status {
            auto value = ParseInteger(name, text, least, most);
            if (value.ok()) field(draft) = *value;
            return value.status();
          }};
}

template <typename Field>
FlagSpec NumberFlag(const std::string& name, double least, double most,
                    const std::string& help, Field field) {
  return {name, "X", help,
          [=](absl::string_view text, Draft* draft) -> absl::Status {
            auto value = ParseNumber(name, text, least, most);
            if (value.ok()) field(draft) = *value;
            return value.status();
          }};
}

template <typename Field>
FlagSpec TextFlag(const std::string& name, const std::string& value,
                  const std::string& help, Field field) {
  return {name, value, help,
          [=](absl::string_view text, Draft* draft) -> absl::Status {
            if (text.empty()) {
              return absl::InvalidArgumentError(
                  absl::StrCat(name, " takes ", value, ", not an empty text"));
            }
            field(draft) = std::string(text);
            return absl::OkStatus();
          }};
}

// One of a few words, each with its value.
template <typename T, typename Field>
FlagSpec ChoiceFlag(const std::string& name,
                    std::vector<std::pair<std::string, T>> choices,
                    const std::string& help, Field field) {
  std::string words;
  for (const auto& choice : choices) {
    absl::StrAppend(&words, words.empty() ? "" : "|", choice.first);
  }
  return {name, words, help,
          [=](absl::string_view text, Draft* draft) -> absl::Status {
            for (const auto& choice : choices) {
              if (text != choice.first) continue;
              field(draft) = choice.second;
              return absl::OkStatus();
            }
            return absl::InvalidArgumentError(
                absl::StrCat(name, " is ", words, ", not '", text, "'"));
          }};
}

inline FlagSpec SwitchFlag(const std::string& name, const std::string& help,
                           bool Flags::*field) {
  return {name, "", help, [=](absl::string_view, Draft* draft) {
            draft->flags.*field = true;
            return absl::OkStatus();
          }};
}

}  // namespace train_gpt
