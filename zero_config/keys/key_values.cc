#include "zero_config/keys/key_values.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "zero_config/keys/key_conversion.h"
#include "zero_config/keys/nearest_name.h"

namespace terrace {
namespace {

using Kind = JsonValue::Kind;
using NoteKind = ZeroConfigNote::Kind;

// A name that is none of ours may hold anything.
std::string PlainName(const std::string& name) {
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') {
      return Shortened(QuotedText(name));
    }
  }
  return Shortened(name);
}

std::string PathOf(const SectionSpec& section, absl::string_view name) {
  if (section.path.empty()) return std::string(name);
  return absl::StrCat(section.path, ".", name);
}

}  // namespace

absl::Status KeyValues::NoKeys(const std::vector<UnknownKey>& unknown) {
  const std::string why = "that DeepSpeed or Terrace knows";
  if (unknown.size() == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        unknown[0].where, " is no key ", why, unknown[0].suggestion));
  }
  std::vector<std::string> all;
  for (const UnknownKey& key : unknown) {
    all.push_back(absl::StrCat(key.where, " (", key.suggestion.substr(2), ")"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no keys ", why, ": ", absl::StrJoin(all, ", ")));
}

absl::StatusOr<KeyValues> KeyValues::Read(const JsonValue& root) {
  if (root.kind != Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration is ", Shortened(JsonText(root)),
                     ", not an object in braces"));
  }
  KeyValues values;
  const SectionSpec* top = FindSection("");
  TERRACE_CHECK(top != nullptr);
  std::vector<UnknownKey> unknown;
  values.FindUnknown(root, *top, &unknown);
  if (!unknown.empty()) return NoKeys(unknown);
  TERRACE_RETURN_IF_ERROR(values.ReadSection(root, *top));
  if (!values.unknown_.empty()) {
    values.AddNote(NoteKind::kIgnored, absl::StrJoin(values.unknown_, ", "),
                   "no key that DeepSpeed or Terrace knows; not read, as in "
                   "DeepSpeed");
  }
  return values;
}

absl::Status KeyValues::ReadSection(const JsonValue& value,
                                    const SectionSpec& section) {
  for (const JsonValue& item : value.items) {
    const KeySpec* spec = section.Find(item.key);
    if (spec == nullptr) continue;  // one of unknown_
    TERRACE_RETURN_IF_ERROR(ReadKey(item, section, *spec));
  }
  return absl::OkStatus();
}

void KeyValues::FindUnknown(const JsonValue& value, const SectionSpec& section,
                            std::vector<UnknownKey>* errors) {
  const std::vector<std::string> known = section.Names();
  for (const JsonValue& item : value.items) {
    const std::string path = PathOf(section, PlainName(item.key));
    if (const KeySpec* spec = section.Find(item.key); spec != nullptr) {
      if (spec->type == KeyType::kSection && item.kind == Kind::kObject) {
        FindUnknown(item, *FindSection(PathOf(section, spec->name)), errors);
      }
    } else if (section.unknown == UnknownKeys::kErrorIfNear &&
               !IsNearMiss(item.key, known)) {
      unknown_.push_back(path);
    } else {
      errors->push_back({absl::StrCat(path, LineText(item.line)),
                         Suggestion(item.key, known)});
    }
  }
}

absl::Status KeyValues::ReadKey(const JsonValue& value,
                                const SectionSpec& section,
                                const KeySpec& spec) {
  const std::string path = PathOf(section, spec.name);
  const bool old = !spec.deprecated.empty() && value.key == spec.deprecated;
  if (old) {
    AddNote(NoteKind::kDeprecated, PathOf(section, value.key),
            absl::StrCat("deprecated; read as ", path));
  }
  const auto before = entries_.find(path);
  if (before == entries_.end()) return ReadValue(value, path, spec);
  // A spelling beside another: aliases never, deprecated ones if they agree.
  const Entry& other = before->second;
  if ((old ||
       (!spec.deprecated.empty() && other.spelling == spec.deprecated)) &&
      other.written == JsonText(value)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(PathOf(section, value.key), ": ", Shortened(JsonText(value)),
                   LineText(value.line), " is given twice: ", Where(path),
                   " is another spelling of it"));
}

absl::Status KeyValues::ReadValue(const JsonValue& value,
                                  const std::string& path,
                                  const KeySpec& spec) {
  Entry& entry = entries_[path];
  entry.written = JsonText(value);
  entry.spelling = value.key;
  entry.line = value.line;
  if (value.kind == Kind::kNull && spec.fallback == "null") {
    entry.absent = true;
    return absl::OkStatus();
  }
  if (value.kind == Kind::kText && value.text == "auto" && TakesAuto(spec)) {
    entry.automatic = true;
    return absl::OkStatus();
  }
  if (spec.type == KeyType::kSection) {
    const SectionSpec* section = FindSection(path);
    TERRACE_CHECK(section != nullptr);
    // zero_optimization was once a boolean.
    if (path == "zero_optimization" && value.kind == Kind::kBoolean) {
      AddNote(NoteKind::kDeprecated, path,
              "a boolean is deprecated; read as stage 1 for true, 0 for false");
      entries_["zero_optimization.stage"] = {
          {value.boolean ? "1" : "0"}, entry.written, "stage", entry.line};
      return absl::OkStatus();
    }
    if (value.kind != Kind::kObject) {
      return Bad(path, "allowed: an object");
    }
    return ReadSection(value, *section);
  }
  if (!ConvertValue(value, spec, &entry.items)) {
    return Bad(path, absl::StrCat("allowed: ", Allowed(spec),
                                  spec.fallback == "null" ? " or null" : ""));
  }
  return UseValue(value, path, spec);
}

absl::Status KeyValues::UseValue(const JsonValue& value,
                                 const std::string& path, const KeySpec& spec) {
  const std::string canonical = absl::StrJoin(Find(path)->items, ", ");
  switch (spec.use) {
    case KeyUse::kRead:
      return absl::OkStatus();
    case KeyUse::kSized:
      AddNote(NoteKind::kSized, path,
              absl::StrCat("accepted; sized by Terrace: ", spec.why));
      return absl::OkStatus();
    case KeyUse::kIgnored:
      AddNote(NoteKind::kIgnored, path,
              absl::StrCat("accepted; no effect here: ", spec.why));
      return absl::OkStatus();
    case KeyUse::kDefault:
      if (canonical == spec.fallback) return absl::OkStatus();
      return NotBuilt(path,
                      absl::StrCat(spec.why, "; allowed: ", spec.fallback));
    case KeyUse::kLegacy:
      if (canonical == spec.fallback) return absl::OkStatus();
      return Bad(path, absl::StrCat(spec.why, "; allowed: ", spec.fallback));
    case KeyUse::kOff: {
      if (value.kind != Kind::kObject) return Bad(path, "allowed: an object");
      const JsonValue* enabled = value.Find("enabled");
      if (enabled == nullptr) return absl::OkStatus();
      std::vector<std::string> items;
      const bool known =
          ConvertValue(*enabled, BooleanKey("", KeyUse::kRead, ""), &items);
      if (enabled->text == "auto" || (known && items[0] == "false")) {
        return absl::OkStatus();
      }
      const absl::string_view why = "allowed: {\"enabled\": false}";
      if (!known) return Bad(path, why);
      return NotBuilt(path, absl::StrCat(spec.why, "; ", why));
    }
    case KeyUse::kEmpty:
      if (canonical == "{}" || canonical == "false") return absl::OkStatus();
      return NotBuilt(path, absl::StrCat(spec.why, "; allowed: {}"));
  }
  return absl::OkStatus();
}

const KeyValues::Entry* KeyValues::Find(absl::string_view path) const {
  const auto found = entries_.find(path);
  return found == entries_.end() ? nullptr : &found->second;
}

std::string KeyValues::Where(absl::string_view path) const {
  const Entry* entry = Find(path);
  if (entry == nullptr) return std::string(path);
  return absl::StrCat(path, ": ", Shortened(entry->written),
                      LineText(entry->line));
}

bool KeyValues::Given(absl::string_view path) const {
  const Entry* entry = Find(path);
  return entry != nullptr && !entry->automatic && !entry->absent;
}

bool KeyValues::IsAuto(absl::string_view path) const {
  const Entry* entry = Find(path);
  return entry != nullptr && entry->automatic;
}

std::string KeyValues::Text(absl::string_view path) const {
  if (Given(path)) return absl::StrJoin(Find(path)->items, ", ");
  return SpecOf(path).fallback;
}

bool KeyValues::Boolean(absl::string_view path) const {
  return Text(path) == "true";
}

int64_t KeyValues::Integer(absl::string_view path) const {
  int64_t integer = 0;
  TERRACE_CHECK(absl::SimpleAtoi(Text(path), &integer));
  return integer;
}

double KeyValues::Number(absl::string_view path) const {
  double number = 0;
  TERRACE_CHECK(absl::SimpleAtod(Text(path), &number));
  return number;
}

std::vector<std::string> KeyValues::Texts(absl::string_view path) const {
  return Given(path) ? Find(path)->items : std::vector<std::string>();
}

std::vector<double> KeyValues::Numbers(absl::string_view path) const {
  std::vector<double> numbers;
  for (const std::string& item : Texts(path)) {
    TERRACE_CHECK(absl::SimpleAtod(item, &numbers.emplace_back()));
  }
  return numbers;
}

std::vector<std::string> KeyValues::GivenBelow(
    absl::string_view section) const {
  const std::string prefix = absl::StrCat(section, ".");
  std::vector<std::string> names;
  for (const auto& [path, entry] : entries_) {
    if (!absl::StartsWith(path, prefix) || entry.absent) continue;
    names.push_back(path.substr(prefix.size()));
  }
  return names;
}

std::vector<std::string> KeyValues::AllGiven() const {
  std::vector<std::string> paths;
  for (const auto& [path, entry] : entries_) {
    if (!entry.automatic && !entry.absent) paths.push_back(path);
  }
  return paths;
}

absl::Status KeyValues::Bad(absl::string_view path,
                            absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(Where(path), ": ", why));
}

absl::Status KeyValues::NotBuilt(absl::string_view path,
                                 absl::string_view why) const {
  return absl::UnimplementedError(
      absl::StrCat(Where(path), " is not built: ", why));
}

void KeyValues::AddNote(ZeroConfigNote::Kind kind, absl::string_view path,
                        absl::string_view text) {
  notes_.push_back({kind, std::string(path), std::string(text)});
}

}  // namespace terrace
