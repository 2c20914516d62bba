// Files that were truncated or altered: found, named, and nothing of them in
// use.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(job_.Save(directory_.path()).ok());
    // "checkpoint.json", then "optimizer-", then "parameters-".
    for (const std::string& name : directory_.Entries()) {
      files_.push_back(directory_.path() + "/" + name);
    }
    ASSERT_EQ(files_.size(), 3u);
  }

  // The header of a file, by its own bytes.
  static SafetensorsHeader HeaderOf(const std::string& bytes) {
    size_t length = 0;
    for (size_t i = 8; i-- > 0;) {
      length = length * 256 + static_cast<unsigned char>(bytes[i]);
    }
    auto header = ParseSafetensorsHeader(bytes.substr(8, length));
    EXPECT_TRUE(header.ok()) << header.status();
    return *header;
  }

  // What a load of the damaged checkpoint says, after having seen that it left
  // the parameters as they were and the optimizer as it was or without state.
  absl::Status LoadDamaged() {
    Model before = job_.model();
    const absl::Status status = job_.Load(directory_.path());
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      EXPECT_TRUE(before.parameters()[i].values.SameBits(
          job_.model().parameters()[i].values))
          << before.parameters()[i].spec.name;
    }
    if (job_.optimizer().step() == 0) {
      ReferenceOptimizer anew(before, {});
      EXPECT_EQ(anew.StateDifference(job_.optimizer()), "");
    }
    return status;
  }

  TemporaryDirectory directory_;
  Job job_{Model::Mixed(17), {}};
  std::vector<std::string> files_;
};

TEST_F(Damage, OfAnyTensorIsFoundWithItsNameFileAndOffset) {
  const uint64_t seed = 4711;
  std::mt19937_64 random(seed);
  RecordProperty("seed", std::to_string(seed));
  for (size_t file : {1u, 2u}) {
    const std::string bytes = ReadAll(files_[file]);
    for (const SafetensorsEntry& tensor : HeaderOf(bytes).tensors) {
      if (tensor.size_bytes == 0) continue;
      std::string altered = bytes;
      const auto at = static_cast<size_t>(tensor.offset) +
                      random() % static_cast<uint64_t>(tensor.size_bytes);
      altered[at] = static_cast<char>(altered[at] ^ (1 << (random() % 8)));
      Overwrite(files_[file], altered);
      const absl::Status status = LoadDamaged();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr("'" + tensor.name + "'"), HasSubstr(files_[file]),
                HasSubstr("offset " + std::to_string(tensor.offset))));
      auto opened = Checkpoint::Open(directory_.path());
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_TRUE(absl::IsDataLoss((*opened)->Verify()));
    }
    Overwrite(files_[file], bytes);
  }
  EXPECT_TRUE(job_.Load(directory_.path()).ok());
}

TEST_F(Damage, OfAnyByteOfAHeaderIsFound) {
  for (size_t file : {1u, 2u}) {
    const std::string bytes = ReadAll(files_[file]);
    const auto header = static_cast<size_t>(HeaderOf(bytes).header_bytes);
    for (size_t at = 0; at < header; at += 7) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ 4);
      Overwrite(files_[file], altered);
      const absl::Status status = Checkpoint::Open(directory_.path()).status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status << " at " << at;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(files_[file]), HasSubstr("header")));
    }
    Overwrite(files_[file], bytes);
  }
}

TEST_F(Damage, OfATruncatedFileNamesTheFirstTensorThatIsNotWhole) {
  for (size_t file : {1u, 2u}) {
    const std::string bytes = ReadAll(files_[file]);
    const SafetensorsHeader header = HeaderOf(bytes);
    for (const SafetensorsEntry& tensor : header.tensors) {
      if (tensor.size_bytes == 0) continue;
      const auto end = static_cast<size_t>(tensor.offset + tensor.size_bytes);
      for (const size_t length :
           {end - 1, static_cast<size_t>(tensor.offset)}) {
        Overwrite(files_[file], bytes.substr(0, length));
        const absl::Status status = LoadDamaged();
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("'" + tensor.name + "'"), HasSubstr(files_[file]),
                  HasSubstr("truncated to " + std::to_string(length))));
      }
    }
    for (const size_t length : {size_t{0}, size_t{7}, size_t{8}, size_t{100}}) {
      Overwrite(files_[file], bytes.substr(0, length));
      const absl::Status status = LoadDamaged();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(files_[file]));
    }
    Overwrite(files_[file], bytes + "x");
    EXPECT_TRUE(absl::IsDataLoss(LoadDamaged()));
    Overwrite(files_[file], bytes);
  }
}

TEST_F(Damage, OfTheJsonAndOfMissingFilesIsFound) {
  const std::string json = ReadAll(files_[0]);
  for (size_t length = 0; length < json.size(); length += 97) {
    Overwrite(files_[0], json.substr(0, length));
    const absl::Status status = LoadDamaged();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(files_[0]));
  }
  Overwrite(files_[0], json);
  for (size_t file : {1u, 2u}) {
    const std::string bytes = ReadAll(files_[file]);
    std::filesystem::remove(files_[file]);
    const absl::Status status = LoadDamaged();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(files_[file]));
    Overwrite(files_[file], bytes);
  }
  EXPECT_TRUE(job_.Load(directory_.path()).ok());
}

TEST_F(Damage, OfFilesThatAreOfAnotherCheckpointIsFound) {
  // A file of the right name and size, but of other bytes: a later step's.
  const std::string parameters = files_[2];
  const std::string bytes = ReadAll(parameters);
  job_.Step(2);
  TemporaryDirectory later;
  ASSERT_TRUE(job_.Save(later.path()).ok());
  const std::string other =
      ReadAll(later.path() + "/" + later.Entries().back());
  ASSERT_EQ(bytes.size(), other.size());
  Overwrite(parameters, other);
  EXPECT_TRUE(absl::IsDataLoss(LoadDamaged()));
}

TEST(DamageBehindTheFirstBlock, IsFoundInItsBlock) {
  // Arrays of 10 MB in three blocks of 4 MiB.
  Job job(Model::Of({{"w", DType::kFloat32, 2'500'000}}, 3),
          {.budget_bytes = 4 << 20, .chunk_bytes = 1 << 20});
  ASSERT_TRUE(job.ok());
  job.Step(1);
  TemporaryDirectory directory;
  ASSERT_TRUE(job.Save(directory.path()).ok());
  const std::string path = directory.path() + "/" + directory.Entries()[1];
  std::string bytes = ReadAll(path);
  for (const auto& [behind, block] :
       {std::pair{0, 0}, std::pair{(4 << 20) - 1, 0}, std::pair{4 << 20, 1},
        std::pair{9'999'999, 2}, std::pair{10'000'000, 0},
        std::pair{19'999'999, 2}}) {
    const size_t at = bytes.size() - 20'000'000 + static_cast<size_t>(behind);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    Overwrite(path, bytes);
    const absl::Status status = job.Load(directory.path());
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    const size_t start = bytes.size() - 20'000'000 +
                         (behind >= 10'000'000 ? 10'000'000u : 0u) +
                         static_cast<size_t>(block) * (4u << 20);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("offset " + std::to_string(start)));
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  }
  Overwrite(path, bytes);
  const Model before = job.model();
  const absl::Status loaded = job.Load(directory.path());
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(job.optimizer().step(), 1);
  EXPECT_TRUE(before.parameters()[0].values.SameBits(
      job.model().parameters()[0].values));
}

}  // namespace
}  // namespace terrace
