// Safetensors files of others, whole and broken, read tensor by tensor.
#include "checkpoint/weight_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <tuple>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ReadWhole(const WeightFiles& files, const std::string& name) {
  const WeightFiles::Tensor& tensor = files.tensors().at(name);
  std::string bytes(static_cast<size_t>(tensor.size_bytes), '\0');
  const absl::Status read = files.Read(
      tensor, 0, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(read.ok()) << read;
  return bytes;
}

std::string One(const std::string& entry, const std::string& data) {
  return SafetensorsFile("{\"a\":{" + entry + "}}", data);
}

class WeightFilesTest : public testing::Test {
 protected:
  absl::Status StatusOf(const std::string& bytes) const {
    return WeightFiles::Open(folder_.Write("file", bytes)).status();
  }
  TemporaryDirectory folder_;
};

TEST_F(WeightFilesTest, TensorsOfAFileHaveTheirBytes) {
  SafetensorsWriter writer;
  writer.Add("b", "F32", {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.Add("a", "I64", {}, std::vector<int64_t>{-7});
  writer.Add("none", "BF16", {0, 9}, "");
  writer.Add("odd", "BOOL", {3}, std::string("\1\0\1", 3));
  const std::string path = folder_.Write("w", writer.Bytes());
  const auto files = WeightFiles::Open(path);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->tensors().size(), 4u);
  const WeightFiles::Tensor& b = files->tensors().at("b");
  EXPECT_EQ(b.dtype, StoredDType(StoredDType::kFloat32));
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(files->PathOf(b), path);
  const std::string bytes = ReadWhole(*files, "b");
  std::vector<float> values(6);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  float fourth = 0;
  ASSERT_TRUE(
      files->Read(b, 12, {reinterpret_cast<std::byte*>(&fourth), 4}).ok());
  EXPECT_EQ(fourth, 4);
  EXPECT_EQ(ReadWhole(*files, "a"),
            std::string("\xf9") + std::string(7, '\xff'));
  EXPECT_EQ(ReadWhole(*files, "none"), "");
  EXPECT_EQ(ReadWhole(*files, "odd"), std::string("\1\0\1", 3));
}

TEST_F(WeightFilesTest, AnIndexSaysWhichFileHasWhich) {
  SafetensorsWriter one, two;
  one.Add("a", "U8", {2}, "xy");
  one.Add("unnamed", "U8", {1}, "?");
  two.Add("b", "U8", {1}, "z");
  folder_.Write("1", one.Bytes());
  folder_.Write("2", two.Bytes());
  folder_.Write("model.safetensors", "broken, and not the first choice");
  const std::string index =
      R"({"metadata":{"total_size":3},"weight_map":{"a":"1","b":"2"}})";
  for (const char* const name :
       {"other.safetensors.index.json", "model.safetensors.index.json"}) {
    SCOPED_TRACE(name);
    folder_.Write(name, index);
    const auto files = WeightFiles::Open(folder_.path());
    ASSERT_TRUE(files.ok()) << files.status();
    ASSERT_EQ(files->tensors().size(), 2u);
    EXPECT_EQ(ReadWhole(*files, "a"), "xy");
    EXPECT_EQ(ReadWhole(*files, "b"), "z");
    EXPECT_EQ(files->PathOf(files->tensors().at("b")), folder_.path() + "/2");
  }
}

TEST_F(WeightFilesTest, AFolderWithoutAnIndexHasOneFile) {
  SafetensorsWriter writer;
  writer.Add("a", "U8", {2}, "xy");
  folder_.Write("model.safetensors", writer.Bytes());
  const auto files = WeightFiles::Open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(ReadWhole(*files, "a"), "xy");
}

TEST_F(WeightFilesTest, FilesThatAreNoneAreRefusedWithTheirPath) {
  const std::string f32 = R"("dtype":"F32","shape":[2],"data_offsets":)";
  const std::vector<std::tuple<std::string, std::string>> wrongs = {
      {std::string(90, '\xff'),
       "18446744073709551615 bytes, and may have 100000000"},
      {SafetensorsFile("", ""), "no JSON object"},
      {SafetensorsFile("[1]", ""), "no JSON object"},
      {SafetensorsFile("{\"a\":", ""), "no JSON object"},
      {SafetensorsFile("{}", "more"), "has 14 bytes, and its header is of 10"},
      {One(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])", "x"),
       "'a' has dtype \"F4\""},
      {One(R"("dtype":[],"shape":[],"data_offsets":[0,0])", ""),
       "has dtype (array)"},
      // Deeper than a stack is.
      {One("\"dtype\":" + std::string(1 << 20, '[') +
               std::string(1 << 20, ']') +
               R"(,"shape":[],"data_offsets":[0,0])",
           ""),
       "nested too deep"},
      {One(f32 + "[0,9]", "123456789"), "in 9 bytes"},
      {One(f32 + "[8,0]", "12345678"), "in -8 bytes"},
      {One(f32 + "[-8,0]", "12345678"), "not two offsets"},
      {One(f32 + "[4,12]", "123456789012"), "is at data offset 4"},
      {One(f32 + "[0,4,8]", "12345678"), "not two offsets"},
      {One(R"("dtype":"F64","shape":[1152921504606846976],)"
           R"("data_offsets":[0,0])",
           ""),
       "in 0 bytes"},
      {SafetensorsFile("{\"a\":{" + f32 + "[0,8]},\"b\":{" + f32 + "[4,12]}}",
                       "123456789012"),
       "'b' is at data offset 4, the one before it ends at 8"},
      {SafetensorsFile("{\"a\":{" + f32 + "[0,8]},\"a\":{" + f32 + "[0,8]}}",
                       "12345678"),
       "the key 'a' twice"},
      {One(f32 + "[0,8],\"dtype\":\"I32\"", "12345678"),
       "the key 'dtype' twice"},
  };
  for (const auto& [bytes, why] : wrongs) {
    const absl::Status status = StatusOf(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_.path() + "/file"), HasSubstr(why)));
    EXPECT_EQ(IoFaultOf(status).path, folder_.path() + "/file") << why;
    EXPECT_GE(IoFaultOf(status).offset, 0) << why;
  }
}

TEST_F(WeightFilesTest, AHeaderLongerThanAnyIsNotRead) {
  // A sparse file, so that only the limit refuses it.
  const std::string path =
      folder_.Write("file", SafetensorsFile("", "").replace(3, 1, "\x10"));
  ASSERT_EQ(truncate(path.c_str(), int64_t{1} << 30), 0);
  const absl::Status status = WeightFiles::Open(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("268435456 bytes, and may have 100000000"));
}

TEST_F(WeightFilesTest, ACutFileIsDataLossThatNamesTheTensorAndTheEnd) {
  SafetensorsWriter writer;
  writer.Add("a", "U8", {2}, "xy");
  writer.Add("b", "U8", {4}, "1234");
  const std::string bytes = writer.Bytes();
  const size_t size = bytes.size() - 1;
  const absl::Status status = StatusOf(bytes.substr(0, size));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("tensor 'b', 4 bytes from offset " +
                              std::to_string(bytes.size() - 4)),
                    HasSubstr(folder_.path() + "/file")));
  EXPECT_EQ(IoFaultOf(status).offset, static_cast<int64_t>(size));
}

TEST_F(WeightFilesTest, EveryBeginningOfAFileIsDataLossThatNamesItsEnd) {
  SafetensorsWriter writer;
  writer.Add("a", "U8", {2}, "xy");
  writer.Add("b", "U8", {4}, "1234");
  const std::string bytes = writer.Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::Status status = StatusOf(bytes.substr(0, size));
    EXPECT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
    EXPECT_EQ(IoFaultOf(status).path, folder_.path() + "/file") << size;
    EXPECT_EQ(IoFaultOf(status).offset, static_cast<int64_t>(size));
  }
  EXPECT_THAT(std::string(StatusOf(bytes.substr(0, 5)).message()),
              HasSubstr("it has 5 bytes"));
  EXPECT_THAT(std::string(StatusOf(bytes.substr(0, 9)).message()),
              HasSubstr(" bytes from offset 8 on, and the file 9 in all"));
}

TEST_F(WeightFilesTest, ABoolIsZeroOrOne) {
  SafetensorsWriter writer;
  writer.Add("mask", "BOOL", {4}, std::string("\1\0\1\2", 4));
  writer.Add("bytes", "U8", {1}, "\2");
  const std::string path = folder_.Write("file", writer.Bytes());
  const auto files = WeightFiles::Open(path);
  ASSERT_TRUE(files.ok()) << files.status();
  const WeightFiles::Tensor& mask = files->tensors().at("mask");
  std::byte bytes[2];
  EXPECT_TRUE(files->Read(mask, 1, absl::MakeSpan(bytes)).ok());
  const absl::Status status = files->Read(mask, 2, absl::MakeSpan(bytes));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(": the byte at offset " +
                        std::to_string(mask.offset + 3) + " is 2"));
  EXPECT_EQ(IoFaultOf(status).path, path);
  EXPECT_EQ(IoFaultOf(status).offset, mask.offset + 3);
  EXPECT_EQ(ReadWhole(*files, "bytes"), "\2");
}

TEST_F(WeightFilesTest, AFileThatIsCutLaterIsDataLossWhenItIsRead) {
  SafetensorsWriter writer;
  writer.Add("a", "U8", {4}, "1234");
  const std::string path = folder_.Write("file", writer.Bytes());
  const auto files = WeightFiles::Open(path);
  ASSERT_TRUE(files.ok()) << files.status();
  const auto end = static_cast<int64_t>(writer.Bytes().size()) - 2;
  ASSERT_EQ(truncate(path.c_str(), end), 0);
  std::byte bytes[4];
  const absl::Status status =
      files->Read(files->tensors().at("a"), 0, absl::MakeSpan(bytes));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ends at offset " + std::to_string(end)));
  EXPECT_EQ(IoFaultOf(status).path, path);
  EXPECT_EQ(IoFaultOf(status).offset, end);
}

TEST_F(WeightFilesTest, IndicesThatAreNoneAreRefusedWithTheirPath) {
  const std::vector<std::tuple<std::string, std::string>> wrongs = {
      {"", "no object weight_map"},
      {"{}", "no object weight_map"},
      {R"({"weight_map":[]})", "no object weight_map"},
      {R"({"weight_map":{"a":1}})", "'a' is in (number), which is"},
      {R"({"weight_map":{"a":[]}})", "'a' is in (array)"},
      {"{\"weight_map\":{\"a\":" + std::string(1 << 20, '[') +
           std::string(1 << 20, ']') + "}}",
       "nested too deep"},
      {R"({"weight_map":{"a":""}})", "no name"},
      {R"({"weight_map":{"a":".."}})", "no name"},
      {R"({"weight_map":{"a":"../file"}})", "no name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "no name"},
      {R"({"weight_map":{"a":"part","lost":"part","gone":"part"}})",
       "have not: 'gone' in part, 'lost' in part"},
      {R"({"weight_map":{"a":"part","a":"other"}})", "the key 'a' twice"},
  };
  SafetensorsWriter writer;
  writer.Add("a", "U8", {1}, "x");
  folder_.Write("part", writer.Bytes());
  for (const auto& [text, why] : wrongs) {
    const std::string path =
        folder_.Write("model.safetensors.index.json", text);
    const absl::Status status = WeightFiles::Open(folder_.path()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(IoFaultOf(status).path, path);
  }
}

TEST_F(WeightFilesTest, TwoIndicesOfOtherNamesAreNoChoice) {
  folder_.Write("x.safetensors.index.json", "{}");
  folder_.Write("y.safetensors.index.json", "{}");
  const absl::Status status = WeightFiles::Open(folder_.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("x.safetensors.index.json, y.safetensors.index.json"));
}

TEST_F(WeightFilesTest, WhatIsNotThereIsNotFoundWithItsErrno) {
  folder_.Write("indexed/model.safetensors.index.json",
                R"({"weight_map":{"a":"gone"}})");
  for (const std::string& path :
       {folder_.path() + "/none", folder_.MakeDirectory("empty"),
        folder_.path() + "/indexed"}) {
    const absl::Status status = WeightFiles::Open(path).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(IoFaultOf(status).path, HasSubstr(path));
    EXPECT_EQ(IoFaultOf(status).error, ENOENT);
  }
}

TEST_F(WeightFilesTest, APipeIsNotWaitedFor) {
  const std::string path = folder_.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = WeightFiles::Open(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(path + ": is no regular file"));
}

// Drawn damage: whatever it does to the header, the file is refused with a
// typed error, or each of its tensors lies within it and can be read.
TEST_F(WeightFilesTest, AnyDamageIsRefusedOrHarmless) {
  SafetensorsWriter writer;
  writer.Add("first.weight", "F32", {3, 5}, std::vector<float>(15, 1.5f));
  writer.Add("first.bias", "BF16", {5}, std::string(10, 'b'));
  writer.Add("steps", "I64", {}, std::vector<int64_t>{9});
  const std::string whole = writer.Bytes();
  const size_t header = whole.size() - 60 - 10 - 8;
  constexpr char kLikely[] = "0123456789-.eE[]{},:\" \\FIU";
  std::mt19937 random(20261123);
  const auto draw = [&](size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random);
  };
  int refused = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = whole;
    for (size_t edits = 1 + draw(3); edits > 0; --edits) {
      const size_t at = draw(header);
      switch (draw(5)) {
        case 0:
          bytes[at] = static_cast<char>(draw(256));
          break;
        case 1:
          bytes[8 + at % (header - 8)] = kLikely[draw(sizeof(kLikely) - 1)];
          break;
        case 2:
          bytes.erase(at, 1 + draw(4));
          break;
        case 3:
          bytes.insert(8 + at % (header - 8), 1,
                       kLikely[draw(sizeof(kLikely) - 1)]);
          break;
        default:
          bytes.resize(draw(bytes.size()) + 1);
      }
      if (bytes.size() < header) break;
    }
    const std::string path = folder_.Write("file", bytes);
    const auto files = WeightFiles::Open(path);
    if (!files.ok()) {
      ++refused;
      ASSERT_TRUE(absl::IsInvalidArgument(files.status()) ||
                  absl::IsDataLoss(files.status()))
          << round << ": " << files.status();
      ASSERT_EQ(IoFaultOf(files.status()).path, path) << round;
      continue;
    }
    for (const auto& [name, tensor] : files->tensors()) {
      ASSERT_GE(tensor.offset, 8) << round;
      ASSERT_EQ(ReadWhole(*files, name),
                bytes.substr(static_cast<size_t>(tensor.offset),
                             static_cast<size_t>(tensor.size_bytes)))
          << round << " " << name;
    }
  }
  EXPECT_GT(refused, kRounds / 2);
  EXPECT_LT(refused, kRounds);
}

}  // namespace
}  // namespace terrace
