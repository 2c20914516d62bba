// Whatever a folder holds: no reader waits for it for ever, takes more than the
// machine has, or counts beyond what can be counted.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/checksum.h"
#include "terrace/machine.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// No regular files, of which a reader may wait for one, or read for ever.
const char* const kKinds[] = {"pipe", "folder", "device", "socket"};

// Up to there a double has every count.
constexpr int64_t kMost = int64_t{1} << 53;

bool MakeOther(const std::string& kind, const std::string& path) {
  if (kind == "pipe") return mkfifo(path.c_str(), 0600) == 0;
  if (kind == "folder") return mkdir(path.c_str(), 0700) == 0;
  if (kind == "socket") return mknod(path.c_str(), S_IFSOCK | 0600, 0) == 0;
  return symlink("/dev/zero", path.c_str()) == 0;
}

void WriteAll(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::string ManifestPath(const TemporaryDirectory& directory) {
  return directory.path() + "/checkpoint.json";
}

Manifest ManifestOf(const TemporaryDirectory& directory) {
  auto manifest = ParseManifest(ReadAll(ManifestPath(directory)), "it");
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *std::move(manifest);
}

void WriteManifest(const TemporaryDirectory& directory,
                   const Manifest& manifest) {
  const auto text = ManifestText(manifest);
  ASSERT_TRUE(text.ok()) << text.status();
  WriteAll(ManifestPath(directory), *text);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

void LeaveLittleMemory() {
  const rlimit limit{.rlim_cur = 1 << 29, .rlim_max = 1 << 29};
  setrlimit(RLIMIT_AS, &limit);
}

// A tensor that is not in memory.
class Counted final : public CheckpointElements {
 public:
  int64_t reads = 0;

  absl::Status Read(int64_t, absl::Span<std::byte>) override {
    ++reads;
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override {
    return absl::OkStatus();
  }
};

class Bounds : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(
        job_.Save(directory_.path(), {{"text", std::string(5000, 'x')}}).ok());
  }
  absl::Status Open() const {
    return Checkpoint::Open(directory_.path()).status();
  }
  // Of no parameters.
  absl::Status SaveEight() const {
    CheckpointContents contents;
    contents.values = {{"seed", int64_t{8}}};
    return SaveCheckpoint(directory_.path(), contents, InAMinute()).status();
  }
  absl::Status SaveOf(const std::string& name, CheckpointElements* elements) {
    std::vector<CheckpointTensor> tensors = job_.tensors();
    tensors[0].name = name;
    tensors[0].data = nullptr;
    tensors[0].elements = elements;
    return SaveCheckpoint(
               directory_.path(),
               {.parameters = tensors, .optimizer = &job_.optimizer()},
               InAMinute())
        .status();
  }

  TemporaryDirectory directory_;
  Job job_{Model::Of({{"w", DType::kFloat32, 5000}}, 3), {}};
};

TEST_F(Bounds, WhatIsNoFileIsRefusedAtOnce) {
  const std::vector<std::string> names = directory_.Entries();
  ASSERT_EQ(names.size(), 4u);
  for (const std::string& name : names) {
    const std::string path = directory_.path() + "/" + name;
    std::filesystem::rename(path, path + ".kept");
    for (const std::string kind : kKinds) {
      ASSERT_TRUE(MakeOther(kind, path)) << kind;
      EXPECT_TRUE(InChild([&] {
        const absl::Status status = Open();
        return !status.ok() && IoFaultOf(status).path == path &&
               std::string(status.message()).find("no regular file") !=
                   std::string::npos;
      })) << kind
          << " as " << name;
      std::filesystem::remove_all(path);
    }
    std::filesystem::rename(path + ".kept", path);
  }
  EXPECT_TRUE(Open().ok());
}

TEST_F(Bounds, ASaveReplacesAPipe) {
  std::filesystem::remove(ManifestPath(directory_));
  ASSERT_TRUE(MakeOther("pipe", ManifestPath(directory_)));
  ASSERT_TRUE(InChild([&] { return SaveEight().ok(); }));
  auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->values().at("seed"), CheckpointValue(int64_t{8}));
}

TEST_F(Bounds, AWeightsFolderOfOtherThingsIsRefusedAtOnce) {
  for (const std::string kind : kKinds) {
    for (const char* name : {"model.safetensors.index.json", "part"}) {
      TemporaryDirectory folder;
      folder.Write("model.safetensors.index.json",
                   R"({"weight_map": {"a": "part"}})");
      std::filesystem::remove(folder.path() + "/" + name);
      ASSERT_TRUE(MakeOther(kind, folder.path() + "/" + name));
      EXPECT_TRUE(InChild([&] {
        return absl::IsInvalidArgument(
            WeightFiles::Open(folder.path()).status());
      })) << kind
          << " as " << name;
    }
  }
}

TEST_F(Bounds, AFolderInPlaceOfTheJsonIsKnownBeforeATensorIsWritten) {
  Counted elements;
  std::filesystem::remove(ManifestPath(directory_));
  ASSERT_TRUE(MakeOther("folder", ManifestPath(directory_)));
  const auto before = directory_.Entries();
  const absl::Status status = SaveOf("w", &elements);
  EXPECT_EQ(IoFaultOf(status).error, EISDIR) << status;
  EXPECT_EQ(IoFaultOf(status).path, ManifestPath(directory_));
  EXPECT_EQ(elements.reads, 0);
  EXPECT_EQ(directory_.Entries(), before);
}

TEST_F(Bounds, ALinkThatLeadsToItselfIsAnError) {
  for (const std::string& name : directory_.Entries()) {
    const std::string path = directory_.path() + "/" + name;
    std::filesystem::rename(path, path + ".kept");
    ASSERT_EQ(symlink(path.c_str(), path.c_str()), 0);
    EXPECT_EQ(IoFaultOf(Open()).error, ELOOP) << Open();
    std::filesystem::remove(path);
    std::filesystem::rename(path + ".kept", path);
  }
}

// A file with holes has any length, and a checksum of each 4 MiB is 16 bytes.
TEST_F(Bounds, AValueThatNoMemoryHasIsRefused) {
  Manifest manifest = ManifestOf(directory_);
  constexpr int64_t kBlock = kCheckpointBlockBytes;
  for (const int64_t size :
       {2 * AvailableMemoryBytes() / kBlock * kBlock, int64_t{1} << 42}) {
    std::vector<SafetensorsEntry> entries = {
        {.name = "value.text", .dtype = StoredDType::kUInt8, .shape = {size}}};
    SafetensorsHeader header;
    const auto text = MakeSafetensorsHeader(entries, &header);
    ASSERT_TRUE(text.ok()) << text.status();
    ManifestFile& file = *manifest.values_file;
    const std::string path = directory_.path() + "/" + file.name;
    WriteAll(path, *text);
    std::filesystem::resize_file(path, header.file_bytes);
    file.size_bytes = header.file_bytes;
    file.header_bytes = header.header_bytes;
    file.header_checksum = Checksum(text->data(), text->size());
    file.checksums = {{"value.text", std::vector<uint64_t>(size / kBlock)}};
    WriteManifest(directory_, manifest);
    EXPECT_TRUE(InChild([&] {
      const absl::Status status = Open();
      return absl::IsResourceExhausted(status) &&
             IoFaultOf(status).error == ENOMEM &&
             IoFaultOf(status).path == path;
    })) << size;
  }
}

TEST_F(Bounds, LittleMemoryIsAnErrorOfTheReader) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitiser takes more than there is";
  WriteAll(ManifestPath(directory_), "");
  std::filesystem::resize_file(ManifestPath(directory_), 1 << 30);
  EXPECT_TRUE(InChild([&] {
    LeaveLittleMemory();
    const absl::Status status = Open();
    return absl::IsResourceExhausted(status) &&
           IoFaultOf(status).error == ENOMEM;
  }));
}

// It removes nothing, as it does not know what that names.
TEST_F(Bounds, LittleMemoryIsNoReasonNotToSave) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitiser takes more than there is";
  const auto before = directory_.Entries();
  WriteAll(ManifestPath(directory_), "");
  std::filesystem::resize_file(ManifestPath(directory_), 1 << 30);
  ASSERT_TRUE(InChild([&] {
    LeaveLittleMemory();
    return SaveEight().ok();
  }));
  EXPECT_TRUE(Open().ok()) << Open();
  EXPECT_THAT(directory_.Entries(), testing::IsSupersetOf(before));
}

TEST_F(Bounds, CountersAreCounts) {
  OffloadedOptimizer& optimizer = job_.optimizer();
  for (const int64_t steps : {INT64_MAX, kMost + 1, INT64_MIN}) {
    const std::vector<int64_t> given = {steps};
    EXPECT_TRUE(absl::IsInvalidArgument(optimizer.SetSteps(1, given)));
    EXPECT_TRUE(absl::IsInvalidArgument(
        optimizer.SetSteps(steps, std::vector<int64_t>{1})));
  }
  EXPECT_EQ(optimizer.step(), 1);
  const std::vector<int64_t> most = {kMost};
  ASSERT_TRUE(optimizer.SetSteps(kMost, most).ok());
  job_.Step(2);
  EXPECT_EQ(optimizer.step(), kMost);
  EXPECT_EQ(optimizer.parameter_steps()[0], kMost);
  ASSERT_TRUE(job_.Save(directory_.path()).ok());
  ASSERT_TRUE(job_.Load(directory_.path()).ok());
  job_.Step(3);
  EXPECT_EQ(optimizer.step(), kMost);
}

TEST_F(Bounds, CountersOfAFileAreCounts) {
  const Manifest saved = ManifestOf(directory_);
  for (const int64_t steps : {INT64_MAX, kMost + 1}) {
    Manifest manifest = saved;
    manifest.parameter_steps["w"] = steps;
    WriteManifest(directory_, manifest);
    EXPECT_TRUE(absl::IsDataLoss(Open())) << Open();
    manifest = saved;
    manifest.step = steps;
    WriteManifest(directory_, manifest);
    EXPECT_TRUE(absl::IsDataLoss(Open())) << Open();
  }
  WriteManifest(directory_, saved);
  EXPECT_TRUE(Open().ok());
}

TEST_F(Bounds, AHeaderThatIsTooLongIsKnownBeforeATensorIsWritten) {
  const auto before = directory_.Entries();
  Counted elements;
  // Of which one name is within the limit for parameters, and not for state.
  const absl::Status status = SaveOf(std::string(60'000'000, 'n'), &elements);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("more than a safetensors header may have"));
  EXPECT_EQ(elements.reads, 0);
  EXPECT_EQ(directory_.Entries(), before);
  EXPECT_TRUE(Open().ok());
}

}  // namespace
}  // namespace terrace
