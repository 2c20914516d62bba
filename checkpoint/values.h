// Where the values of a checkpoint lie: numbers and what is short in
// checkpoint.json; longer texts and bytes in a safetensors file of their own,
// kind "values", each as uint8 [length] with the name "value.KEY". So
// checkpoint.json stays short, whatever the values are.
//
// Pure functions, but for those that read and write a file in blocks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file.h"
#include "terrace/checkpoint.h"

namespace terrace {

// Longer ones lie in a file,
inline constexpr size_t kLongestValueInJson = 4 << 10;
// and, in the order of their keys, those behind so many bytes of short ones.
inline constexpr size_t kMostValuesInJson = 1 << 20;

// Fills in `values` and `filed_values`. InvalidArgument: a text that is no
// UTF-8.
absl::Status PlaceValues(const CheckpointValues& values, Manifest* manifest);

// Writes those of `manifest.filed_values`, of which there is one at least, to
// a new file and flushes it. After an error the file may be there.
absl::StatusOr<ManifestFile> WriteFiledValues(const File& directory,
                                              const std::string& name,
                                              const CheckpointValues& values,
                                              const Manifest& manifest);

// DataLoss: the file's tensors are not `manifest.filed_values`.
absl::Status CheckFiledValues(const Manifest& manifest,
                              const TensorFileReader& file);
// Adds them to `values`. ResourceExhausted: one is larger than the memory that
// is left.
absl::Status ReadFiledValues(const Manifest& manifest,
                             const TensorFileReader& file,
                             CheckpointValues* values);

}  // namespace terrace
