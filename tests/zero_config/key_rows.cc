#include "tests/zero_config/key_rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace terrace::zero_config_test {

std::vector<Row> AllRows() {
  std::vector<Row> all;
  for (const auto& part :
       {ZeroRows(), OffloadRows(), TrainingRows(), TopRows(), OtherRows()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::string TextOf(const Row& row) {
  std::vector<std::string> names = absl::StrSplit(row.path, '.');
  std::string text =
      absl::StrCat(row.beside, "\"", names.back(), "\": ", row.value);
  names.pop_back();
  while (!names.empty()) {
    text = absl::StrCat("\"", names.back(), "\": {", text, "}");
    names.pop_back();
  }
  const std::string micro = "train_micro_batch_size_per_gpu";
  return absl::StrCat(
      "{", row.path == micro ? "" : absl::StrCat("\"", micro, "\": 1, "),
      row.top, text, "}");
}

}  // namespace terrace::zero_config_test
