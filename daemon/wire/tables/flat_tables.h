// What the writers and readers of control.fbs's tables have in common. For
// them alone.
#pragma once

#include <daemon/wire/control_generated.h>  // of control.fbs
#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace terrace {

using FlatBuilder = flatbuffers::FlatBufferBuilder;

template <typename Table>
using FlatTables = flatbuffers::Vector<flatbuffers::Offset<Table>>;

// A member of a union: which, and its table.
template <typename Union>
struct FlatMember {
  Union kind = Union::NONE;
  flatbuffers::Offset<void> table;
};

inline absl::Status WrongMessage(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("a control message that ", what));
}

// Reads a message's tables. What becomes of them takes no more than kGrowth
// times the message's bytes: two places of a hostile one may name the same
// bytes, again and again, and each would be copied.
class FlatReader {
 public:
  // A value may take more than its table.
  static constexpr size_t kGrowth = 16;

  explicit FlatReader(size_t message_bytes)
      : left_bytes_(kGrowth * (message_bytes + kLeastBytes)) {}

  // Before so many are copied.
  absl::Status Take(size_t bytes) {
    if (bytes > left_bytes_) return WrongMessage("names its bytes repeatedly");
    left_bytes_ -= bytes;
    return absl::OkStatus();
  }
  // A field that a writer of this protocol always sets.
  absl::StatusOr<std::string> Text(const flatbuffers::String* text,
                                   absl::string_view field) {
    if (text == nullptr) return WrongMessage(absl::StrCat("has no ", field));
    TERRACE_RETURN_IF_ERROR(Take(text->size() + sizeof(std::string)));
    return text->str();
  }
  // One that it need not set.
  absl::StatusOr<std::string> TextOrNone(const flatbuffers::String* text) {
    if (text == nullptr) return std::string();
    return Text(text, "");
  }
  template <typename Value>
  absl::Status Numbers(const flatbuffers::Vector<Value>* from,
                       absl::string_view field, std::vector<Value>* numbers) {
    if (from == nullptr) return WrongMessage(absl::StrCat("has no ", field));
    TERRACE_RETURN_IF_ERROR(CheckAligned(*from, alignof(Value), field));
    TERRACE_RETURN_IF_ERROR(Take(from->size() * sizeof(Value)));
    numbers->assign(from->begin(), from->end());
    return absl::OkStatus();
  }
  // Structs, each of which becomes a value by `read`.
  template <typename Value, typename Struct, typename Read>
  absl::Status Structs(const flatbuffers::Vector<const Struct*>* from,
                       absl::string_view field, Read read,
                       std::vector<Value>* values) {
    if (from == nullptr) return WrongMessage(absl::StrCat("has no ", field));
    TERRACE_RETURN_IF_ERROR(CheckAligned(*from, alignof(Struct), field));
    TERRACE_RETURN_IF_ERROR(Take(from->size() * sizeof(Value)));
    values->reserve(from->size());
    for (const Struct* const each : *from) values->push_back(read(*each));
    return absl::OkStatus();
  }
  // Tables, each of which becomes a value or an error by `read`.
  template <typename Value, typename Table, typename Read>
  absl::Status Tables(const FlatTables<Table>* from, absl::string_view field,
                      Read read, std::vector<Value>* values) {
    if (from == nullptr) return WrongMessage(absl::StrCat("has no ", field));
    TERRACE_RETURN_IF_ERROR(Take(from->size() * sizeof(Value)));
    for (const Table* const each : *from) {
      TERRACE_ASSIGN_OR_RETURN(Value value, read(*each));
      values->push_back(std::move(value));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kLeastBytes = 256;

  // The verifier looks where a list's length is, and not where its first value
  // is.
  template <typename List>
  static absl::Status CheckAligned(const List& list, size_t alignment,
                                   absl::string_view field) {
    const auto data = reinterpret_cast<uintptr_t>(list.Data());
    if (list.size() == 0 || data % alignment == 0) return absl::OkStatus();
    return WrongMessage(absl::StrCat("has misaligned ", field));
  }

  size_t left_bytes_;
};

// The number as one of those from 0 to `last`, or an error.
template <typename Enum>
absl::StatusOr<Enum> EnumOf(uint8_t number, Enum last, absl::string_view what) {
  if (number <= static_cast<uint8_t>(last)) return static_cast<Enum>(number);
  return WrongMessage(absl::StrCat("has a ", what, " of the unknown kind ",
                                   static_cast<int>(number)));
}

// Times, of which the infinite ones are the first and the last.
int64_t NanosOf(absl::Time time);
absl::Time TimeOf(int64_t nanos);

// An absl::Status, with its payloads; OK too.
flatbuffers::Offset<flat::Outcome> WriteOutcome(FlatBuilder& builder,
                                                const absl::Status& status);
// What the table says is `status`; the answer is whether it says anything.
absl::Status ReadOutcome(const flat::Outcome* table, FlatReader& reader,
                         absl::string_view field, absl::Status* status);

}  // namespace terrace
