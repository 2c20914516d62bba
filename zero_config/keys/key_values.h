// The text's values by path, each checked alone against its row of the key
// table, and the notes that those rows ask for. A value that is absent, null
// or "auto" reads as its default.
//
// Immutable once read, but for `notes`. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "zero_config/keys/json_tree.h"
#include "zero_config/keys/key_table.h"

namespace terrace {

class KeyValues {
 public:
  // InvalidArgument: unknown, which names all of them; twice, of a wrong type,
  // out of range. Unimplemented: a value that is not built.
  static absl::StatusOr<KeyValues> Read(const JsonValue& root);

  // A value of its own: neither absent nor null nor "auto". A section too.
  bool Given(absl::string_view path) const;
  bool IsAuto(absl::string_view path) const;

  bool Boolean(absl::string_view path) const;
  int64_t Integer(absl::string_view path) const;
  double Number(absl::string_view path) const;
  std::string Text(absl::string_view path) const;
  std::vector<std::string> Texts(absl::string_view path) const;
  std::vector<double> Numbers(absl::string_view path) const;
  // Of the given ones, below a section: names without the section's path.
  std::vector<std::string> GivenBelow(absl::string_view section) const;

  // All of them, sections too.
  std::vector<std::string> AllGiven() const;

  // "path: value (line n): why"
  absl::Status Bad(absl::string_view path, absl::string_view why) const;
  // "path: value (line n) is not built: why"
  absl::Status NotBuilt(absl::string_view path, absl::string_view why) const;

  void AddNote(ZeroConfigNote::Kind kind, absl::string_view path,
               absl::string_view text);
  const std::vector<ZeroConfigNote>& notes() const { return notes_; }

 private:
  struct Entry {
    std::vector<std::string> items;  // canonical; one unless a list
    std::string written;             // as JSON
    std::string spelling;            // the key as it was written
    int line = 0;
    bool automatic = false;
    bool absent = false;  // null
  };

  struct UnknownKey {
    std::string where;       // its path and line
    std::string suggestion;  // "; did you mean ..."
  };

  static absl::Status NoKeys(const std::vector<UnknownKey>& unknown);
  // Of all sections: those that are no keys, as an error, or to be noted.
  void FindUnknown(const JsonValue& value, const SectionSpec& section,
                   std::vector<UnknownKey>* errors);
  absl::Status ReadSection(const JsonValue& value, const SectionSpec& section);
  absl::Status ReadKey(const JsonValue& value, const SectionSpec& section,
                       const KeySpec& spec);
  absl::Status ReadValue(const JsonValue& value, const std::string& path,
                         const KeySpec& spec);
  absl::Status UseValue(const JsonValue& value, const std::string& path,
                        const KeySpec& spec);
  const Entry* Find(absl::string_view path) const;
  std::string Where(absl::string_view path) const;

  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> unknown_;
  std::vector<ZeroConfigNote> notes_;
};

}  // namespace terrace
