// Checkpoints and weights of more files than a process has descriptors.
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save/directory.h"
#include "checkpoint/tensor_file.h"
#include "checkpoint/weight_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// As of a process that may have 64 files, as long as it lives.
class FewDescriptors {
 public:
  FewDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{.rlim_cur = 64, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

// What the program has open besides: all but a few of those, as long as it
// lives.
class OthersOpen {
 public:
  explicit OthersOpen(size_t left) {
    for (int fd = dup(0); fd >= 0; fd = dup(0)) open_.push_back(fd);
    for (; left > 0; --left) {
      close(open_.back());
      open_.pop_back();
    }
  }
  ~OthersOpen() {
    for (const int fd : open_) close(fd);
  }

 private:
  std::vector<int> open_;
};

// As a part of each of 100 ranks leaves it.
class ManyFiles : public testing::Test {
 protected:
  static constexpr int kFiles = 100;

  static Model ManyParameters() {
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < kFiles; ++i) {
      specs.push_back({absl::StrCat("p", i), DType::kFloat32, 24});
    }
    return Model::Of(std::move(specs), 5);
  }

  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    reference_.Step({}, job_.model());
    ASSERT_TRUE(job_.Save(directory_.path()).ok());
    auto parsed =
        ParseManifest(ReadAll(directory_.path() + "/checkpoint.json"), "it");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    Manifest manifest = *std::move(parsed);
    manifest.state.clear();
    for (int i = 0; i < kFiles; ++i) WriteState(i, &manifest);
    const absl::Status status = Publish(manifest);
    ASSERT_TRUE(status.ok()) << status;
    manifest_ = std::move(manifest);
  }

  absl::Status Publish(const Manifest& manifest) {
    const auto writer = CheckpointWriterDirectory::Open(directory_.path());
    return writer.ok() ? (*writer)->Publish(manifest) : writer.status();
  }

  void WriteState(int i, Manifest* manifest) {
    std::vector<float> first(24);
    std::vector<float> second(24);
    StateSpans spans;
    spans.first_moment = absl::MakeSpan(first);
    spans.second_moment = absl::MakeSpan(second);
    auto reader = job_.optimizer().OpenStateReader();
    ASSERT_TRUE(reader.ok());
    ASSERT_TRUE((*reader)->Read(i, 0, spans, InAMinute()).ok());
    const auto directory = File::OpenDirectory(directory_.path());
    ASSERT_TRUE(directory.ok());
    const std::string name = absl::StrCat("p", i);
    std::vector<SafetensorsEntry> entries;
    for (const char* suffix : {".exp_avg", ".exp_avg_sq"}) {
      entries.push_back({.name = name + suffix, .shape = ShapeOf(24)});
    }
    auto writer = TensorFileWriter::Create(directory->fd(), directory_.path(),
                                           NewCheckpointFileName("optimizer"),
                                           std::move(entries));
    ASSERT_TRUE(writer.ok()) << writer.status();
    const auto bytes_of = [](const std::vector<float>& values) {
      return absl::Span<const std::byte>(
          reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(float));
    };
    ASSERT_TRUE(writer->WriteBlock(name + ".exp_avg", 0, bytes_of(first)).ok());
    ASSERT_TRUE(
        writer->WriteBlock(name + ".exp_avg_sq", 0, bytes_of(second)).ok());
    auto file = writer->Finish();
    ASSERT_TRUE(file.ok()) << file.status();
    manifest->state.push_back(*std::move(file));
  }

  TemporaryDirectory directory_;
  Manifest manifest_;
  Job job_{ManyParameters(), {}};
  ReferenceOptimizer reference_{ManyParameters(), {}};
};

TEST_F(ManyFiles, ArePublishedWithTheFewDescriptorsThatAreLeft) {
  const FewDescriptors few;
  const OthersOpen others(/*left=*/8);
  const absl::Status status = Publish(manifest_);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ManyFiles, AreReadWithFewDescriptors) {
  job_.Step(2);
  {
    const FewDescriptors few;
    auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE((*checkpoint)->Verify().ok());
    const absl::Status status =
        (*checkpoint)->Load(job_.tensors(), &job_.optimizer(), InAMinute());
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(reference_.StateDifference(job_.optimizer()), "");
}

TEST_F(ManyFiles, ThatASaveReplacedAreSaidToBe) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> few_open = [this] {
    const FewDescriptors few;
    return Checkpoint::Open(directory_.path());
  }();
  auto all_open = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(few_open.ok() && all_open.ok());
  ASSERT_TRUE(job_.Save(directory_.path()).ok());
  const absl::Status status = (*few_open)->Verify();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was replaced"));
  EXPECT_TRUE((*all_open)->Verify().ok());
}

TEST(ManyWeightFiles, AreReadWithFewDescriptors) {
  TemporaryDirectory folder;
  std::string map;
  for (int i = 0; i < 100; ++i) {
    SafetensorsWriter part;
    part.Add(absl::StrCat("t", i), "U8", {1},
             std::string(1, static_cast<char>(i)));
    folder.Write(absl::StrCat("part", i), part.Bytes());
    absl::StrAppend(&map, i == 0 ? "" : ",", "\"t", i, "\":\"part", i, "\"");
  }
  folder.Write("model.safetensors.index.json",
               absl::StrCat(R"({"weight_map":{)", map, "}}"));
  const FewDescriptors few;
  const auto files = WeightFiles::Open(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  for (int i = 0; i < 100; ++i) {
    std::byte byte{255};
    const auto& tensor = files->tensors().at(absl::StrCat("t", i));
    ASSERT_TRUE(files->Read(tensor, 0, {&byte, 1}).ok());
    EXPECT_EQ(std::to_integer<int>(byte), i);
  }
}

}  // namespace
}  // namespace terrace
