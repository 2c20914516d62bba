// What a user can get wrong, one by one: the program says it in one line, ends
// with a code that is not zero, trains nothing and leaves nothing behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "tests/examples/command.h"
#include "tests/support/loop_device.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::LoopDevice;
using ::terrace::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using Arguments = std::vector<std::string>;

// The run ended as every refusal must, with a line that matches.
void ExpectRefusal(const ChildResult& run,
                   const Matcher<const std::string&>& line) {
  EXPECT_GT(run.exit_code, 0) << "signal " << run.signal;
  EXPECT_THAT(run.errors, line);
  EXPECT_EQ(run.errors.rfind("train_gpt: ", 0), 0u) << run.errors;
  EXPECT_EQ(run.errors.find('\n'), run.errors.size() - 1) << run.errors;
  EXPECT_TRUE(LossesOf(run.output).empty()) << run.output;
}

Arguments Offloaded(const std::string& path, const Arguments& more = {}) {
  Arguments arguments =
      Smallest({"--memory-budget", "40%", "--nvme-path", path});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(BadInputTest, TheRunThatTheOthersDifferFromSucceeds) {
  TemporaryDirectory path;
  const ChildResult run = RunTrainGpt(Offloaded(path.path(), {"--steps=2"}));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(LossesOf(run.output).size(), 2u);
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, AnNvmePathThatDoesNotExistIsNotMade) {
  TemporaryDirectory path;
  const std::string none = path.path() + "/none";
  ExpectRefusal(RunTrainGpt(Offloaded(none)),
                AllOf(HasSubstr("--nvme-path"), HasSubstr(none),
                      HasSubstr("No such file or directory")));
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, AnNvmePathThatIsSomebodysFileStaysAsItIs) {
  TemporaryDirectory path;
  const std::string file = path.Write("file", "mine");
  ExpectRefusal(
      RunTrainGpt(Offloaded(file, {"--save", path.path() + "/saves"})),
      AllOf(HasSubstr(file), HasSubstr("truncate")));
  EXPECT_THAT(path.Entries(), ::testing::ElementsAre("file"));
  struct stat info;
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 4);
}

TEST(BadInputTest, AnNvmePathThatIsNothingToWriteTo) {
  ExpectRefusal(RunTrainGpt(Offloaded("/dev/null")),
                AllOf(HasSubstr("--nvme-path"), HasSubstr("/dev/null"),
                      HasSubstr("neither a directory, a file")));
}

TEST(BadInputTest, AnNvmePathThatIsATooSmallDevice) {
  LoopDevice device((2 << 20) + (256 << 10));
  if (!device.ok()) GTEST_SKIP() << device.reason();
  ExpectRefusal(RunTrainGpt(Offloaded(device.path())),
                AllOf(HasSubstr("--nvme-path"), HasSubstr(device.path()),
                      HasSubstr("not enough room")));
}

TEST(BadInputTest, AnNvmePathThatCannotBeWritten) {
  TemporaryDirectory path, good;
  for (const mode_t mode : {0555, 0300, 0000}) {
    ASSERT_EQ(chmod(path.path().c_str(), mode), 0);
    const ChildResult run =
        RunTrainGpt(Offloaded(good.path(), {"--nvme-path", path.path()}),
                    {.respect_permissions = true});
    if (run.exit_code == ChildProcess::kNotStarted) {
      GTEST_SKIP() << "privileges cannot be given up here";
    }
    ExpectRefusal(run, AllOf(HasSubstr("--nvme-path"), HasSubstr(path.path()),
                             HasSubstr("Permission denied")));
    ASSERT_EQ(chmod(path.path().c_str(), 0700), 0);
    EXPECT_TRUE(path.empty());
    EXPECT_TRUE(good.empty());
  }
}

TEST(BadInputTest, AnNvmePathOnAReadOnlyDisk) {
  TemporaryDirectory path;
  if (!path.MountTmpfs("size=16m", MS_RDONLY)) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  ExpectRefusal(RunTrainGpt(Offloaded(path.path())),
                AllOf(HasSubstr(path.path()), HasSubstr("Read-only")));
}

TEST(BadInputTest, TheSameNvmePathTwiceUnderTwoNames) {
  TemporaryDirectory path;
  const std::string first = path.MakeDirectory("first");
  ExpectRefusal(
      RunTrainGpt(Offloaded(first, {"--nvme-path", path.path() + "/./first/"})),
      HasSubstr("is the same as " + first));
  EXPECT_TRUE(std::filesystem::is_empty(first));
}

TEST(BadInputTest, ABudgetBelowTheMinimumNamesAMinimumThatWorks) {
  TemporaryDirectory path;
  const auto with = [&](const std::string& budget) {
    return RunTrainGpt(Smallest({"--memory-budget", budget, "--nvme-path",
                                 path.path(), "--steps", "1"}));
  };
  for (const char* budget : {"1", "64KiB"}) {
    ExpectRefusal(with(budget), AllOf(HasSubstr("--memory-budget"),
                                      HasSubstr("below the minimum of ")));
  }
  const std::string line = with("1").errors;
  const std::string key = "the minimum of ";
  const int64_t minimum =
      std::atoll(line.c_str() + line.find(key) + key.size());
  ExpectRefusal(with(std::to_string(minimum - 1)), HasSubstr(key));
  EXPECT_TRUE(path.empty());
  const ChildResult run = with(std::to_string(minimum));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, ADiskTooSmallIsFoundBeforeTraining) {
  TemporaryDirectory small, large;
  if (!small.MountTmpfs("size=500k")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  // The state of 552 KiB takes 624 KiB on disk, half of it on each of two
  // paths, and --verify 276 KiB more on the first.
  ExpectRefusal(RunTrainGpt(Offloaded(small.path())),
                AllOf(HasSubstr("not enough room"), HasSubstr(small.path())));
  EXPECT_TRUE(small.empty());
  const std::vector<std::string> both = {"--nvme-path", large.path(), "--steps",
                                         "1"};
  const ChildResult run = RunTrainGpt(Offloaded(small.path(), both));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  std::vector<std::string> verified = both;
  verified.push_back("--verify");
  ExpectRefusal(RunTrainGpt(Offloaded(small.path(), verified)),
                HasSubstr("not enough room"));
  EXPECT_TRUE(small.empty());
  EXPECT_TRUE(large.empty());
}

TEST(BadInputTest, AFileSizeLimitIsAnErrorNotADeath) {
  TemporaryDirectory path;
  const ChildResult run =
      RunTrainGpt(Offloaded(path.path()), {.largest_file_bytes = 128 << 10});
  ExpectRefusal(run, AllOf(HasSubstr(path.path()), HasSubstr("preallocate"),
                           HasSubstr("EFBIG")));
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, TextThatIsEmptyMissingOrUnreadable) {
  TemporaryDirectory path, text;
  const auto with = [&](const std::string& data) {
    return RunTrainGpt(Offloaded(path.path(), {"--data", data}),
                       {.respect_permissions = true});
  };
  const std::string secret = text.Write("secret", std::string(1000, 'x'));
  ASSERT_EQ(chmod(secret.c_str(), 0), 0);
  ExpectRefusal(with(text.Write("empty", "")), HasSubstr("is empty"));
  ExpectRefusal(with(text.MakeDirectory("folder")), HasSubstr("is empty"));
  ExpectRefusal(with(text.Write("short", "abc")), HasSubstr("is too short"));
  ExpectRefusal(with(text.path() + "/none"), HasSubstr("no such file"));
  ExpectRefusal(with("/dev/null"), HasSubstr("not a file or a folder"));
  const ChildResult run = with(secret);
  if (run.exit_code != ChildProcess::kNotStarted) {
    ExpectRefusal(run, AllOf(HasSubstr("cannot read " + secret),
                             HasSubstr("Permission denied")));
  }
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, AReportThatCannotBeWritten) {
  TemporaryDirectory path, other;
  const std::string taken = other.Write("taken", "mine");
  for (const std::string& json :
       {other.path(), other.path() + "/none/x.json", taken + "/x.json"}) {
    ExpectRefusal(RunTrainGpt(Offloaded(path.path(), {"--json", json})),
                  AllOf(HasSubstr("--json"), HasSubstr(json),
                        HasSubstr("cannot be written")));
  }
  // What is refused for another reason leaves no report, nor changes one.
  ExpectRefusal(RunTrainGpt(Offloaded(path.path() + "/none",
                                      {"--json", other.path() + "/new"})),
                HasSubstr("none"));
  EXPECT_THAT(other.Entries(), ::testing::ElementsAre("taken"));
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, DevicesOtherThanTheProcessor) {
  TemporaryDirectory path;
  for (const char* device : {"cuda", "cuda:0", "mps", ""}) {
    ExpectRefusal(RunTrainGpt(Offloaded(path.path(), {"--device", device})),
                  AllOf(HasSubstr("--device"), HasSubstr("not supported"),
                        HasSubstr("cpu")));
  }
  EXPECT_TRUE(path.empty());
  EXPECT_EQ(RunTrainGpt(Smallest({"--device", "cpu", "--steps=1"})).exit_code,
            0);
}

TEST(BadInputTest, WrongCommandLinesNameTheFlag) {
  TemporaryDirectory path;
  const std::vector<std::pair<Arguments, std::string>> wrong = {
      {{"--stesp", "3"}, "did you mean --steps?"},
      {{"--frobnicate"}, "unknown flag --frobnicate"},
      {{"tiny"}, "is not a flag"},
      {{"--steps"}, "--steps needs a value"},
      {{"--seed", "99999999999999999999"}, "--seed takes"},
      {{"--learning-rate", "nan"}, "--learning-rate takes"},
      {{"--clip", "inf"}, "--clip takes"},
      {{"--memory-budget", "-5"}, "--memory-budget takes"},
      {{"--memory-budget", "nan%"}, "--memory-budget takes"},
      {{"--pace", "1GB,-1"}, "--pace takes"},
      {{"--io-engine", "aio"}, "--io-engine is"},
      {{"--nvme-path", ""}, "--nvme-path takes"},
      {{"--machine-profile", path.path() + "/not-there"}, "/not-there"},
      {{"--heads", "7"}, "heads"},
      {{"--vocab", "100"}, "--vocab 100 is too small"},
  };
  for (const auto& [more, message] : wrong) {
    SCOPED_TRACE(message);
    ExpectRefusal(RunTrainGpt(Offloaded(path.path(), more)),
                  HasSubstr(message));
  }
  EXPECT_TRUE(path.empty());
}

TEST(BadInputTest, MoreMemoryThanThereIs) {
  TemporaryDirectory path;
  for (const Arguments& more :
       {Arguments{"--memory-budget", "64TiB"},
        // More activations than a 64-bit number can count.
        Arguments{"--batch", "65536", "--context", "1048576", "--seq",
                  "1048576", "--layers", "1024", "--width", "65536"}}) {
    ExpectRefusal(RunTrainGpt(Offloaded(path.path(), more)),
                  HasSubstr("not enough memory"));
  }
  EXPECT_TRUE(path.empty());
}

}  // namespace
}  // namespace train_gpt
