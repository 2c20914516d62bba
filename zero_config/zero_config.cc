#include "terrace/zero_config.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero_config/caller_numbers.h"
#include "zero_config/keys/json_tree.h"
#include "zero_config/keys/key_table.h"
#include "zero_config/keys/key_values.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

std::string Treatment(KeyUse use) {
  switch (use) {
    case KeyUse::kRead:
      return "read";
    case KeyUse::kSized:
      return "sized by Terrace";
    case KeyUse::kIgnored:
      return "no effect";
    case KeyUse::kDefault:
      return "default only";
    case KeyUse::kLegacy:
      return "refused";
    case KeyUse::kOff:
      return "only while off";
    case KeyUse::kEmpty:
      return "only empty";
  }
  return "";
}

}  // namespace

absl::StatusOr<ZeroConfigSettings> ReadZeroConfig(
    absl::string_view text, const ZeroConfigCaller& caller) {
  TERRACE_ASSIGN_OR_RETURN(JsonValue root, ParseJson(text));
  if (!caller.text_has_lines) ForgetLines(&root);
  ZeroConfigSettings settings;
  TERRACE_RETURN_IF_ERROR(CheckOptimizerType(caller, root));
  TERRACE_RETURN_IF_ERROR(TakeCallersOptimizer(caller, &root, &settings));
  TERRACE_RETURN_IF_ERROR(CheckSchedulerType(root));
  TERRACE_ASSIGN_OR_RETURN(KeyValues values, KeyValues::Read(root));
  TERRACE_RETURN_IF_ERROR(ReadActivations(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(ReadZero(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(ReadZenflow(values, settings));
  TERRACE_RETURN_IF_ERROR(ReadPrecision(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(ReadBatch(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(CheckAccumulation(values, settings));
  TERRACE_RETURN_IF_ERROR(ReadOptimizer(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(ReadSchedule(caller, &values, &settings));
  TERRACE_RETURN_IF_ERROR(ReadTheRest(caller, &values, &settings));
  NoteContradictions(caller, &values);
  settings.notes = values.notes();
  settings.given = values.AllGiven();
  return settings;
}

std::vector<ZeroConfigKey> ZeroConfigKeys() {
  std::vector<ZeroConfigKey> keys;
  for (const SectionSpec& section : AllSections()) {
    for (const KeySpec& spec : section.keys) {
      const std::string path = section.path.empty()
                                   ? spec.name
                                   : absl::StrCat(section.path, ".", spec.name);
      keys.push_back(
          {path, Allowed(spec), spec.fallback, Treatment(spec.use), spec.why});
    }
  }
  return keys;
}

}  // namespace terrace
