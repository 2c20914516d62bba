// A TableReader takes the values out of one table of a TOML text, key by key,
// and says where what is wrong stands. Keys that nobody has taken at the end
// are unknown.
//
//   TableReader reader("daemon.toml", "quota.job", table);
//   TERRACE_ASSIGN_OR_RETURN(auto arenas, reader.Count("arenas", 1, 64));
//   TERRACE_RETURN_IF_ERROR(reader.CheckAllTaken());
//
// A reader belongs to one thread; the table outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/quota.h"
#include "daemon/config/toml_tree.h"

namespace terrace {

// InvalidArgument, whose message begins with the place.
absl::Status ErrorAt(absl::string_view file, const TextPosition& position,
                     absl::string_view message);

class TableReader {
 public:
  // `name` is what errors call the table: "quota.job"; "" for the whole text.
  TableReader(std::string file, std::string name, const TomlValue& table)
      : file_(std::move(file)), name_(std::move(name)), table_(&table) {}

  // Each returns nothing where there is no such key, and InvalidArgument where
  // its value is of another kind.
  absl::StatusOr<const TomlValue*> Text(absl::string_view key);
  absl::StatusOr<const TomlValue*> Texts(absl::string_view key);
  absl::StatusOr<std::optional<PlacedCount>> Count(absl::string_view key,
                                                   int64_t least, int64_t most);
  absl::StatusOr<std::optional<TableReader>> Table(absl::string_view key);
  // All keys that are not taken, each of which must be a table.
  struct NamedTable;
  absl::StatusOr<std::vector<NamedTable>> OtherTables();

  absl::Status CheckAllTaken() const;
  absl::Status ErrorAt(const TextPosition& position,
                       absl::string_view message) const {
    return terrace::ErrorAt(file_, position, message);
  }

 private:
  const TomlEntry* Take(absl::string_view key);
  absl::Status CheckKind(const TomlEntry& entry, TomlValue::Kind kind) const;
  // The key as errors call it: "quota.job.arenas".
  std::string PathOf(absl::string_view key) const;

  std::string file_;
  std::string name_;
  const TomlValue* table_;
  std::vector<std::string> taken_;  // and those that were asked for
};

struct TableReader::NamedTable {
  std::string name;
  TextPosition position;
  TableReader reader;
};

}  // namespace terrace
