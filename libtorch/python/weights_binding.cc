#include "libtorch/python/weights_binding.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "absl/status/status.h"
#include "checkpoint/weight_files.h"
#include "libtorch/stored_dtypes.h"

namespace terrace {

WeightsBinding::Found WeightsBinding::Find(const std::string& path) {
  Found found;
  auto& [outcome, names, files, dtypes, shapes, offsets] = found;
  const auto opened = WeightFiles::Open(path);
  outcome = ToOutcome(opened.status());
  if (!opened.ok()) return found;
  for (const auto& [name, tensor] : opened->tensors()) {
    names.push_back(name);
    files.push_back(opened->PathOf(tensor));
    dtypes.push_back(at::empty({0}, ScalarTypeOf(tensor.dtype)));
    shapes.push_back(tensor.shape);
    offsets.push_back(tensor.offset);
  }
  return found;
}

std::tuple<Outcome, std::vector<std::string>, std::vector<std::string>>
WeightsBinding::ReadIndex(const std::string& path) {
  const auto index = WeightFiles::ReadIndex(path);
  std::vector<std::string> tensors, files;
  if (index.ok()) {
    for (const auto& [tensor, file] : *index) {
      tensors.push_back(tensor);
      files.push_back(file);
    }
  }
  return {ToOutcome(index.status()), std::move(tensors), std::move(files)};
}

}  // namespace terrace
