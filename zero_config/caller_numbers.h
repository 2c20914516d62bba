// The caller's numbers beside the keys that may have one of their own: which
// fill in what the text leaves open, and which it contradicts. Pure functions.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "terrace/zero_config.h"
#include "zero_config/keys/key_values.h"

namespace terrace {

// Whether the caller's number of that name, "learning_rate", stands for the
// key: the text has "auto" there, or nothing and the caller asked for it.
bool FillsIn(const ZeroConfigCaller& caller, absl::string_view name,
             const KeyValues& values, absl::string_view path);

template <typename T>
std::optional<T> FilledIn(const ZeroConfigCaller& caller,
                          absl::string_view name, const std::optional<T>& value,
                          const KeyValues& values, absl::string_view path) {
  return FillsIn(caller, name, values, path) ? value : std::nullopt;
}

// "accumulation_steps=2"
std::string Argument(absl::string_view name, double value);

// Notes on the numbers of the text that the caller contradicts, but for those
// of the batch.
void NoteContradictions(const ZeroConfigCaller& caller, KeyValues* values);

}  // namespace terrace
