// What a checkpoint cannot fill stays on the meta device, and nothing is left.
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "tests/libtorch/offload/checkpoint_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class OffloadCheckpointFailureTest : public OffloadCheckpointTest {
 protected:
  absl::Status Refused(const OffloadOptions& options) {
    const absl::Status status = Offload::Create(*meta_, options).status();
    EXPECT_FALSE(status.ok());
    ExpectOnMeta(*meta_);
    EXPECT_TRUE(folder_.empty());
    return status;
  }
};

TEST_F(OffloadCheckpointFailureTest, AllThatDoesNotFitIsNamed) {
  SafetensorsWriter writer;
  for (const auto& named : model_->named_parameters()) {
    const std::string& name = named.key();
    if (name == "embedding.weight" || name == "out" ||
        name == "layers.0.bias" || name == "layers.7.weight") {
      continue;
    }
    if (name == "layers.1.bias") {
      writer.Add(name, "F32", {3, 5}, Quarters(15, 1));
    } else if (name == "layers.2.bias") {
      writer.Add(name, "C64", {kWidth}, Quarters(2 * kWidth, 1));
    } else {
      writer.Add(name, "F32", named.value().sizes().vec(),
                 ValuesOf(named.value()));
    }
  }
  writer.Add("other", "F32", {1}, Quarters(1, 1));
  writer.Add("more", "F32", {1}, Quarters(1, 1));
  const std::string path = Write(writer);
  const absl::Status status = Refused(From(path));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(path + " does not fit the model: "),
            // first_rows has some of the values of the other two only.
            HasSubstr("missing out, embedding.weight, layers.0.bias, "
                      "layers.7.weight;"),
            HasSubstr("unexpected more, other;"),
            HasSubstr("misshapen layers.1.bias of [3, 5] for [64];"),
            HasSubstr("not to be converted layers.2.bias of ComplexFloat for "
                      "Float")));
}

TEST_F(OffloadCheckpointFailureTest, WhatHasNoPlaceForEachValueIsNotFilled) {
  struct Odd : ::torch::nn::Module {
    Odd() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      buffer = register_buffer("buffer", at::ones({1}).expand({4}));
      sparse = register_buffer("sparse", at::eye(2).to_sparse());
    }
    at::Tensor weight, buffer, sparse;
  };
  Odd model;
  SafetensorsWriter writer;
  writer.Add("weight", "F32", {2}, Quarters(2, 1));
  writer.Add("buffer", "F32", {4}, Quarters(4, 1));
  writer.Add("sparse", "F32", {2, 2}, Quarters(4, 1));
  const absl::Status status = MakeFrom(model, Write(writer)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("not to be filled buffer has elements in one place, "
                        "sparse is not dense"));
}

TEST_F(OffloadCheckpointFailureTest, AModelThatHasValuesIsNotFilled) {
  const absl::Status status =
      Offload::Create(*model_, From(Write(PlainFile()))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("there already: out on cpu, "),
                    HasSubstr("layers.15.bias on cpu"),
                    HasSubstr("terrace/torch/meta.h")));
  ExpectInMemory();
}

TEST_F(OffloadCheckpointFailureTest, AStorageThatWasFreedIsNotFilled) {
  meta_->layers[4]
      ->as<::torch::nn::Linear>()
      ->weight.storage()
      .unsafeGetStorageImpl()
      ->set_nbytes(0);
  const absl::Status status = Refused(From(Write(PlainFile())));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of no use: layers.4.weight has elements beyond its "
                        "storage"));
}

TEST_F(OffloadCheckpointFailureTest, FilesThatAreNoneKeepTheirCode) {
  EXPECT_TRUE(absl::IsNotFound(Refused(From(files_.path() + "/none"))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Refused(From(files_.Write("text", "no header at all")))));
  const std::string bytes = PlainFile().Bytes();
  EXPECT_TRUE(absl::IsDataLoss(
      Refused(From(files_.Write("cut", bytes.substr(0, bytes.size() - 1))))));
}

TEST_F(OffloadCheckpointFailureTest, ABudgetThatCannotBeIsToldAsEver) {
  OffloadOptions options = From(Write(PlainFile()));
  options.memory_budget_bytes = 4096;
  EXPECT_TRUE(absl::IsResourceExhausted(Refused(options)));
  options.memory_budget_bytes = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(Refused(options)));
}

TEST_F(OffloadCheckpointFailureTest, AFileThatIsCutMeanwhileIsDataLoss) {
  const std::string path = Write(PlainFile());
  OffloadOptions options = From(path);
  const auto size = std::filesystem::file_size(path);
  options.checkpoint_progress = [&](int64_t done, int64_t) {
    if (done > kModelBytes / 2) {
      ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(size / 2)), 0);
    }
  };
  const absl::Status status = Refused(options);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'layers."), HasSubstr(path),
                    HasSubstr(": ends at offset ")));
  // Whole again, it is filled as if nothing had been.
  const auto made = Offload::Create(*meta_, From(Write(PlainFile())));
  ASSERT_TRUE(made.ok()) << made.status();
  const c10::NoGradGuard guard;
  EXPECT_TRUE(meta_->forward(tokens_).equal(answer_));
}

TEST_F(OffloadCheckpointFailureTest, ABufferThatIsCutLeavesAllAsItWas) {
  struct WithBuffer : ::torch::nn::Module {
    WithBuffer() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      first = register_buffer("first", at::full({2}, 8.0f));
      last = register_buffer("last", at::full({2}, 9.0f));
    }
    at::Tensor weight, first, last;
  };
  WithBuffer model;
  SafetensorsWriter writer;
  for (const char* const name : {"weight", "first", "last"}) {
    writer.Add(name, "F32", {2}, std::vector<float>{1, 2});
  }
  OffloadOptions options;
  options.checkpoint = Write(writer);
  const auto end = static_cast<off_t>(writer.Bytes().size()) - 3;
  options.checkpoint_progress = [&](int64_t, int64_t) {
    ASSERT_EQ(truncate(options.checkpoint.c_str(), end), 0);
  };
  const absl::Status status = Offload::Create(model, options).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'last': "));
  EXPECT_TRUE(model.weight.is_meta());
  EXPECT_TRUE(model.first.equal(at::full({2}, 8.0f)));
  EXPECT_TRUE(model.last.equal(at::full({2}, 9.0f)));
}

TEST_F(OffloadCheckpointFailureTest,
       ABufferThatCannotBeWrittenLeavesTheOthers) {
  struct WithBuffers : ::torch::nn::Module {
    WithBuffers() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      first = register_buffer("first", at::full({4}, 8.0f));
      rows = register_buffer("rows", first.view({2, 2}));
      fixed = register_buffer("fixed", at::_efficientzerotensor({2}));
    }
    at::Tensor weight, first, rows, fixed;
  };
  WithBuffers model;
  SafetensorsWriter writer;
  writer.Add("weight", "F32", {2}, std::vector<float>{1, 2});
  writer.Add("first", "F32", {4}, std::vector<float>{1, 2, 3, 4});
  writer.Add("rows", "F32", {2, 2}, std::vector<float>{5, 6, 7, 8});
  writer.Add("fixed", "F32", {2}, std::vector<float>{1, 2});
  const absl::Status status = MakeFrom(model, Write(writer)).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'fixed' cannot be written: "),
                    HasSubstr("immutable"), Not(HasSubstr("old values"))));
  EXPECT_TRUE(model.weight.is_meta());
  EXPECT_TRUE(model.first.equal(at::full({4}, 8.0f)));
}

TEST_F(OffloadCheckpointFailureTest, AByteThatIsNoBoolIsDataLoss) {
  struct Masked : ::torch::nn::Module {
    Masked() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      mask = register_buffer("mask", at::zeros({3}, at::kBool));
      scale = register_buffer("scale", at::ones({3}));
    }
    at::Tensor weight, mask, scale;
  };
  // As it is, and converted.
  for (const std::string name : {"mask", "scale"}) {
    Masked model;
    SafetensorsWriter writer;
    writer.Add("weight", "F32", {2}, std::vector<float>{1, 2});
    writer.Add(name, "BOOL", {3}, std::string("\1\0\2", 3));
    const absl::Status status = MakeFrom(model, Write(writer)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("'" + name + "': "), HasSubstr(" is 2, and ")));
    EXPECT_TRUE(model.weight.is_meta());
    EXPECT_FALSE(model.mask.any().item<bool>());
  }
}

TEST_F(OffloadCheckpointFailureTest,
       MemoryThatLibTorchCannotGetIsToldWithItsBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitiser ends the process that asks for so much";
#endif
  struct Vast : ::torch::nn::Module {
    Vast() {
      weight = register_parameter("weight", at::empty({2}, at::kMeta));
      table = register_buffer(
          "table", at::empty({int64_t{1} << 58}, at::kMeta).narrow(0, 0, 2));
    }
    at::Tensor weight, table;
  };
  Vast model;
  SafetensorsWriter writer;
  writer.Add("weight", "F32", {2}, std::vector<float>{1, 2});
  writer.Add("table", "F32", {2}, std::vector<float>{1, 2});
  const absl::Status status = MakeFrom(model, Write(writer)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1152921504606846976"));
  EXPECT_TRUE(model.weight.is_meta() && model.table.is_meta());
}

TEST_F(OffloadCheckpointFailureTest, ProgressIsToldOfEachTensorUpToAll) {
  OffloadOptions options = From(Write(PlainFile()));
  std::vector<int64_t> told;
  options.checkpoint_progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, kModelBytes);
    EXPECT_GT(done, told.empty() ? 0 : told.back());
    told.push_back(done);
  };
  ASSERT_TRUE(Offload::Create(*meta_, options).ok());
  EXPECT_EQ(told.size(), size_t{1 + 2 * kLayers});
  EXPECT_EQ(told.back(), kModelBytes);
}

TEST_F(OffloadCheckpointFailureTest, WhatProgressThrowsPassesThrough) {
  OffloadOptions options = From(Write(PlainFile()));
  options.checkpoint_progress = [](int64_t done, int64_t) {
    if (done > kModelBytes / 3) throw std::runtime_error("enough");
  };
  EXPECT_THROW(Offload::Create(*meta_, options).IgnoreError(),
               std::runtime_error);
  ExpectOnMeta(*meta_);
  EXPECT_TRUE(folder_.empty());
}

}  // namespace
}  // namespace terrace
