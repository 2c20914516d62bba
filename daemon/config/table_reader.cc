#include "daemon/config/table_reader.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace terrace {

absl::Status ErrorAt(absl::string_view file, const TextPosition& position,
                     absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(Located(file, position), ": ", message));
}

std::string TableReader::PathOf(absl::string_view key) const {
  return name_.empty() ? std::string(key) : absl::StrCat(name_, ".", key);
}

const TomlEntry* TableReader::Take(absl::string_view key) {
  taken_.emplace_back(key);
  for (const TomlEntry& each : table_->entries) {
    if (each.key == key) return &each;
  }
  return nullptr;
}

absl::Status TableReader::CheckKind(const TomlEntry& entry,
                                    TomlValue::Kind kind) const {
  if (entry.value.kind == kind) return absl::OkStatus();
  return ErrorAt(entry.value.position,
                 absl::StrCat(PathOf(entry.key), " is ", TomlKindName(kind),
                              ", not ", TomlKindName(entry.value.kind)));
}

absl::StatusOr<const TomlValue*> TableReader::Text(absl::string_view key) {
  const TomlEntry* const entry = Take(key);
  if (entry == nullptr) return nullptr;
  TERRACE_RETURN_IF_ERROR(CheckKind(*entry, TomlValue::Kind::kText));
  return &entry->value;
}

absl::StatusOr<const TomlValue*> TableReader::Texts(absl::string_view key) {
  const TomlEntry* const entry = Take(key);
  if (entry == nullptr) return nullptr;
  TERRACE_RETURN_IF_ERROR(CheckKind(*entry, TomlValue::Kind::kArray));
  for (const TomlValue& each : entry->value.items) {
    if (each.kind == TomlValue::Kind::kText) continue;
    return ErrorAt(each.position, absl::StrCat(PathOf(key), " has texts, not ",
                                               TomlKindName(each.kind)));
  }
  return &entry->value;
}

absl::StatusOr<std::optional<PlacedCount>> TableReader::Count(
    absl::string_view key, int64_t least, int64_t most) {
  const TomlEntry* const entry = Take(key);
  if (entry == nullptr) return std::nullopt;
  TERRACE_RETURN_IF_ERROR(CheckKind(*entry, TomlValue::Kind::kInteger));
  const int64_t count = entry->value.integer;
  if (count < least || count > most) {
    return ErrorAt(entry->value.position,
                   absl::StrCat(PathOf(key), " is ", least, " to ", most,
                                ", not ", count));
  }
  return PlacedCount{count, entry->value.position};
}

absl::StatusOr<std::optional<TableReader>> TableReader::Table(
    absl::string_view key) {
  const TomlEntry* const entry = Take(key);
  if (entry == nullptr) return std::nullopt;
  TERRACE_RETURN_IF_ERROR(CheckKind(*entry, TomlValue::Kind::kTable));
  return TableReader(file_, PathOf(key), entry->value);
}

absl::StatusOr<std::vector<TableReader::NamedTable>>
TableReader::OtherTables() {
  std::vector<NamedTable> tables;
  for (const TomlEntry& each : table_->entries) {
    if (absl::c_linear_search(taken_, each.key)) continue;
    TERRACE_RETURN_IF_ERROR(CheckKind(each, TomlValue::Kind::kTable));
    tables.push_back({each.key, each.position,
                      TableReader(file_, PathOf(each.key), each.value)});
  }
  for (const NamedTable& each : tables) taken_.push_back(each.name);
  return tables;
}

absl::Status TableReader::CheckAllTaken() const {
  for (const TomlEntry& each : table_->entries) {
    if (absl::c_linear_search(taken_, each.key)) continue;
    return ErrorAt(
        each.position,
        absl::StrCat("no such key: ", PathOf(each.key), "; known",
                     name_.empty() ? "" : absl::StrCat(" in ", name_), ": ",
                     absl::StrJoin(taken_, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace terrace
