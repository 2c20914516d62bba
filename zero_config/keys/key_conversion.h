// One JSON value as its key's type, in canonical text: "true", "500",
// "1e-08", a word in the table's spelling. What DeepSpeed's models take besides
// the plain type is taken too: 5e8, "500" and 3.0 as integers, 1 and "true" as
// booleans.
#pragma once

#include <string>
#include <vector>

#include "zero_config/keys/json_tree.h"
#include "zero_config/keys/key_table.h"

namespace terrace {

// One item, or those of a list. False: not of that type, or out of range.
bool ConvertValue(const JsonValue& value, const KeySpec& spec,
                  std::vector<std::string>* items);

// Whether "auto" leaves this key to Terrace.
bool TakesAuto(const KeySpec& spec);

}  // namespace terrace
