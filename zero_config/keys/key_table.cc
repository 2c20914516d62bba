#include "zero_config/keys/key_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "zero_config/keys/json_tree.h"

namespace terrace {
namespace {

constexpr double kMostInteger = 9223372036854775808.0;  // 2^63

std::vector<SectionSpec> Gather() {
  std::vector<SectionSpec> all;
  for (auto part :
       {TopSections(), ZeroSections(), TrainingSections(), OtherSections()}) {
    for (SectionSpec& section : part) all.push_back(std::move(section));
  }
  return all;
}

std::string Range(const KeySpec& spec) {
  if (spec.most >= kMostInteger) {
    return spec.least <= -kUnbounded
               ? ""
               : absl::StrCat(" of at least ", NumberText(spec.least));
  }
  return absl::StrCat(" from ", NumberText(spec.least), " to ",
                      NumberText(spec.most));
}

}  // namespace

const KeySpec* SectionSpec::Find(absl::string_view name) const {
  for (const KeySpec& key : keys) {
    if (key.name == name) return &key;
    if (!key.alias.empty() && key.alias == name) return &key;
    if (!key.deprecated.empty() && key.deprecated == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> SectionSpec::Names() const {
  std::vector<std::string> names;
  for (const KeySpec& key : keys) names.push_back(key.name);
  return names;
}

const std::vector<SectionSpec>& AllSections() {
  static const std::vector<SectionSpec> all = Gather();
  return all;
}

const SectionSpec* FindSection(absl::string_view path) {
  for (const SectionSpec& section : AllSections()) {
    if (section.path == path) return &section;
  }
  return nullptr;
}

const KeySpec& SpecOf(absl::string_view path) {
  const size_t dot = path.rfind('.');
  const bool top = dot == absl::string_view::npos;
  const SectionSpec* section =
      FindSection(top ? absl::string_view() : path.substr(0, dot));
  TERRACE_CHECK(section != nullptr);
  const KeySpec* spec = section->Find(top ? path : path.substr(dot + 1));
  TERRACE_CHECK(spec != nullptr);
  return *spec;
}

KeySpec BooleanKey(std::string name, KeyUse use, std::string fallback,
                   std::string why) {
  return OtherKey(KeyType::kBoolean, std::move(name), use, std::move(fallback),
                  std::move(why));
}

KeySpec IntegerKey(std::string name, double least, KeyUse use,
                   std::string fallback, std::string why) {
  KeySpec spec = OtherKey(KeyType::kInteger, std::move(name), use,
                          std::move(fallback), std::move(why));
  spec.least = least;
  spec.most = kMostInteger;
  return spec;
}

KeySpec NumberKey(std::string name, double least, double most, KeyUse use,
                  std::string fallback, std::string why) {
  KeySpec spec = OtherKey(KeyType::kNumber, std::move(name), use,
                          std::move(fallback), std::move(why));
  spec.least = least;
  spec.most = most;
  return spec;
}

KeySpec WordKey(KeyType type, std::string name, std::vector<std::string> words,
                KeyUse use, std::string fallback, std::string why) {
  KeySpec spec =
      OtherKey(type, std::move(name), use, std::move(fallback), std::move(why));
  spec.words = std::move(words);
  return spec;
}

KeySpec OtherKey(KeyType type, std::string name, KeyUse use,
                 std::string fallback, std::string why) {
  KeySpec spec;
  spec.name = std::move(name);
  spec.type = type;
  spec.use = use;
  spec.fallback = std::move(fallback);
  spec.why = std::move(why);
  return spec;
}

KeySpec SectionKey(std::string name) {
  return OtherKey(KeyType::kSection, std::move(name), KeyUse::kRead, "null");
}

KeySpec WithAlias(KeySpec spec, std::string alias) {
  spec.alias = std::move(alias);
  return spec;
}

KeySpec WithDeprecated(KeySpec spec, std::string deprecated) {
  spec.deprecated = std::move(deprecated);
  return spec;
}

KeySpec NoText(KeySpec spec) {
  spec.takes_text = false;
  return spec;
}

std::string Allowed(const KeySpec& spec) {
  const std::string words =
      absl::StrCat("\"", absl::StrJoin(spec.words, "\", \""), "\"");
  switch (spec.type) {
    case KeyType::kBoolean:
      return "true or false";
    case KeyType::kInteger:
      return absl::StrCat("an integer", Range(spec));
    case KeyType::kNumber:
      return absl::StrCat("a number", Range(spec));
    case KeyType::kNumbers:
      return absl::StrCat("a list of two numbers", Range(spec));
    case KeyType::kInterval:
      return absl::StrCat("\"auto\" or an integer", Range(spec));
    case KeyType::kWord:
    case KeyType::kDataType:
      return words;
    case KeyType::kAnyCase:
      return absl::StrCat(words, " in any letter case");
    case KeyType::kName:
      return "a name";
    case KeyType::kText:
      return "a text";
    case KeyType::kPaths:
      return "a directory or a list of different directories";
    case KeyType::kTexts:
      return "a text or a list of texts";
    case KeyType::kSection:
      return "an object";
    case KeyType::kOpaque:
      return "any value";
  }
  return "";
}

}  // namespace terrace
