// Every key that Terrace knows of DeepSpeed's JSON, as data: what it takes,
// what it is without the file, and what becomes of it. All checks of single
// values and all notes come from here; what several keys mean together is
// said by the readers of sections.h.
//
// Immutable after the first use; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "terrace/zero_config.h"

namespace terrace {

enum class KeyType : uint8_t {
  kBoolean,   // true, false, 1, 0, "true", "false"
  kInteger,   // 3, 3.0, 5e8, "500" (takes_text); in [least, most]
  kNumber,    // finite; in [least, most]
  kWord,      // one of `words`
  kAnyCase,   // the same, in any letter case
  kDataType,  // the same, or as torch calls it: "torch.float32", "half"
  kName,      // text; "auto" is no answer
  kText,      // any text
  kPaths,     // a directory or a list of them
  kTexts,     // text or a list of texts
  kNumbers,   // a list of two numbers in [least, most]
  kInterval,  // an integer in [least, most], or "auto" as a value
  kSection,   // an object with a SectionSpec of its own
  kOpaque,    // anything; not looked into
};

enum class KeyUse : uint8_t {
  kRead,     // a reader uses it
  kSized,    // accepted; Terrace chooses: a note
  kIgnored,  // accepted; has no effect on results: a note
  kDefault,  // only its default is built, else Unimplemented
  kLegacy,   // only its default is allowed, else InvalidArgument
  kOff,      // an object whose `enabled` must be false, else Unimplemented
  kEmpty,    // an object that must be empty, else Unimplemented
};

struct KeySpec {
  std::string name;
  KeyType type = KeyType::kOpaque;
  KeyUse use = KeyUse::kRead;
  std::string fallback;  // canonical text of the default; "null": none
  std::string why;       // the note, or the reason
  double least = 0, most = 0;
  bool takes_text = true;  // of a number, as DeepSpeed's models do
  std::vector<std::string> words = {};
  std::string alias = {};       // another accepted spelling
  std::string deprecated = {};  // an old spelling, forwarded with a note
};

// kErrorIfNear: of a section in which DeepSpeed looks keys up, so that others
// are not read; one that is nearly a known key is an error all the same.
enum class UnknownKeys : uint8_t { kError, kErrorIfNear };

struct SectionSpec {
  std::string path;  // "" is the top
  UnknownKeys unknown = UnknownKeys::kError;
  std::vector<KeySpec> keys;

  // By any of its spellings; null: unknown.
  const KeySpec* Find(absl::string_view name) const;
  std::vector<std::string> Names() const;
};

// Null where there is none.
const SectionSpec* FindSection(absl::string_view path);
// The spec of a full path, "zero_optimization.stage"; must exist.
const KeySpec& SpecOf(absl::string_view path);
const std::vector<SectionSpec>& AllSections();

// The rows, in parts that fit a file.
std::vector<SectionSpec> TopSections();
std::vector<SectionSpec> ZeroSections();
std::vector<SectionSpec> TrainingSections();
std::vector<SectionSpec> OtherSections();

// Makers of rows.
KeySpec BooleanKey(std::string name, KeyUse use, std::string fallback,
                   std::string why = "");
KeySpec IntegerKey(std::string name, double least, KeyUse use,
                   std::string fallback, std::string why = "");
KeySpec NumberKey(std::string name, double least, double most, KeyUse use,
                  std::string fallback, std::string why = "");
KeySpec WordKey(KeyType type, std::string name, std::vector<std::string> words,
                KeyUse use, std::string fallback, std::string why = "");
KeySpec OtherKey(KeyType type, std::string name, KeyUse use,
                 std::string fallback, std::string why = "");
KeySpec SectionKey(std::string name);
KeySpec WithAlias(KeySpec spec, std::string alias);
KeySpec WithDeprecated(KeySpec spec, std::string deprecated);
// A number that DeepSpeed computes with as it stands in the file.
KeySpec NoText(KeySpec spec);

// What it takes, for messages: "an integer from 0 to 3".
std::string Allowed(const KeySpec& spec);

// Bounds of a number that has none.
inline constexpr double kUnbounded = 1.7976931348623157e308;

}  // namespace terrace
