// Tensors of every element type: in the file as others read it, and back.
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

struct StoredKind {
  StoredDType dtype;
  const char* code;  // by the format's description
  int64_t bytes;
};
constexpr StoredKind kDTypes[] = {
    {DType::kFloat32, "F32", 4},
    {DType::kBFloat16, "BF16", 2},
    {DType::kFloat16, "F16", 2},
    {StoredDType::kFloat64, "F64", 8},
    {StoredDType::kComplex64, "C64", 8},
    {StoredDType::kInt64, "I64", 8},
    {StoredDType::kInt32, "I32", 4},
    {StoredDType::kInt16, "I16", 2},
    {StoredDType::kInt8, "I8", 1},
    {StoredDType::kUInt64, "U64", 8},
    {StoredDType::kUInt32, "U32", 4},
    {StoredDType::kUInt16, "U16", 2},
    {StoredDType::kUInt8, "U8", 1},
    {StoredDType::kBool, "BOOL", 1},
    {StoredDType::kFloat8E4M3, "F8_E4M3", 1},
    {StoredDType::kFloat8E4M3Fnuz, "F8_E4M3FNUZ", 1},
    {StoredDType::kFloat8E5M2, "F8_E5M2", 1},
    {StoredDType::kFloat8E5M2Fnuz, "F8_E5M2FNUZ", 1},
    {StoredDType::kFloat8E8M0, "F8_E8M0", 1},
};

// A tensor of each, with elements of no pattern in memory of its own.
class OfEachKind {
 public:
  explicit OfEachKind(unsigned char seed) {
    for (const StoredKind& kind : kDTypes) {
      std::string bytes(static_cast<size_t>(15 * kind.bytes), '\0');
      for (char& byte : bytes) byte = static_cast<char>(seed = seed * 29 + 7);
      bytes_.push_back(std::move(bytes));
    }
  }

  std::vector<CheckpointTensor> tensors() {
    std::vector<CheckpointTensor> all;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      all.push_back({.name = kDTypes[i].code,
                     .dtype = kDTypes[i].dtype,
                     .shape = {3, 5},
                     .data = bytes_[i].data()});
    }
    return all;
  }
  const std::vector<std::string>& bytes() const { return bytes_; }

 private:
  std::vector<std::string> bytes_;
};

TEST(TensorsOfEveryDType, LieInTheSafetensorsFileAndComeBack) {
  OfEachKind saved(1), loaded(2);
  TemporaryDirectory directory;
  const auto size = SaveCheckpoint(
      directory.path(), {.parameters = saved.tensors()}, InAMinute());
  ASSERT_TRUE(size.ok()) << size.status();
  const auto foreign =
      ReadSafetensors(ReadAll(FileOf(directory, "parameters-")));
  ASSERT_THAT(foreign, SizeIs(std::size(kDTypes)));
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    const ForeignTensor& tensor = foreign.at(kDTypes[i].code);
    EXPECT_EQ(tensor.dtype, kDTypes[i].code);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{3, 5}));
    EXPECT_EQ(tensor.bytes, saved.bytes()[i]) << kDTypes[i].code;
  }
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const CheckpointTensor& tensor : (*checkpoint)->parameters()) {
    EXPECT_EQ(foreign.at(tensor.name).bytes.size(),
              static_cast<size_t>(15 * DTypeBytes(tensor.dtype)));
  }
  const absl::Status status =
      (*checkpoint)->Load(loaded.tensors(), nullptr, InAMinute());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(loaded.bytes(), saved.bytes());
}

TEST(TensorsOfEveryDType, AreRefusedWhereTheCheckpointHasAnother) {
  OfEachKind model(1);
  TemporaryDirectory directory;
  ASSERT_TRUE(SaveCheckpoint(directory.path(), {.parameters = model.tensors()},
                             InAMinute())
                  .ok());
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<CheckpointTensor> tensors = model.tensors();
  tensors[13].dtype = StoredDType::kInt8;  // of the same width
  const absl::Status status =
      (*checkpoint)->Load(tensors, nullptr, InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("bool [3, 5]"), HasSubstr("int8 [3, 5]")));
}

TEST(TensorsOfEveryDType, AreOfBlocksWithChecksums) {
  // Two blocks of 4 MiB and one of 5 bytes.
  std::vector<char> mask((8 << 20) + 5);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  std::vector<char> read(mask.size());
  const auto tensor = [](std::vector<char>& values) {
    return std::vector<CheckpointTensor>{
        {.name = "mask",
         .dtype = StoredDType::kBool,
         .shape = {static_cast<int64_t>(values.size())},
         .data = values.data()}};
  };
  TemporaryDirectory directory;
  ASSERT_TRUE(SaveCheckpoint(directory.path(), {.parameters = tensor(mask)},
                             InAMinute())
                  .ok());
  const std::string path = FileOf(directory, "parameters-");
  std::string bytes = ReadAll(path);
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE((*checkpoint)->Load(tensor(read), nullptr, InAMinute()).ok());
  EXPECT_TRUE(read == mask);
  const size_t second = bytes.size() - mask.size() + (4 << 20);
  bytes[second + 77] = static_cast<char>(bytes[second + 77] ^ 1);
  directory.Write(path.substr(path.rfind('/') + 1), bytes);
  const absl::Status status = (*checkpoint)->Verify();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'mask'"),
                    HasSubstr("offset " + std::to_string(second))));
}

TEST(AnOptimizer, DoesNotHaveATensorOfAnotherDType) {
  Job job(Model::Of({{"w", DType::kFloat32, 8}}, 1), {});
  ASSERT_TRUE(job.ok());
  std::vector<CheckpointTensor> tensors = job.tensors();
  tensors[0].dtype = StoredDType::kInt32;
  TemporaryDirectory directory;
  const auto saved = SaveCheckpoint(
      directory.path(), {.parameters = tensors, .optimizer = &job.optimizer()},
      InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(saved.status())) << saved.status();
  EXPECT_TRUE(directory.empty());
}

}  // namespace
}  // namespace terrace
