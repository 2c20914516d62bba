// --save and --resume: losses and checkpoints of a run that was cut are those
// of the run that was not, bit for bit, wherever it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/examples/command.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The bytes of what a checkpoint's directory holds, without the names, which
// are random: checkpoint.json aside, optimizer and parameters.
std::vector<std::string> TensorsIn(const TemporaryDirectory& directory) {
  std::vector<std::string> files;
  for (const std::string& name : directory.Entries()) {
    if (name == "checkpoint.json") continue;
    std::ifstream file(directory.path() + "/" + name, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file),
                       std::istreambuf_iterator<char>());
  }
  return files;
}

class ResumeTest : public testing::Test {
 protected:
  // On one disk path, two fifths of the state in memory.
  Arguments Offloaded(const Arguments& more) {
    return Smallest({"--memory-budget", "40%", "--nvme-path", disk_.path()}) +
           more;
  }
  std::string Save() { return save_.path(); }
  std::string Json(const std::string& name) {
    return report_.path() + "/" + name;
  }
  void ExpectOk(const Arguments& arguments) {
    const ChildResult result = RunTrainGpt(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }
  nlohmann::json Losses(const std::string& name) {
    return ReadJson(Json(name))["losses"];
  }

  TemporaryDirectory disk_, other_disk_, save_, report_;
};

struct Variant {
  const char* name;
  Arguments model;   // of both runs
  Arguments resume;  // of the second run only
};

TEST_F(ResumeTest, EqualsTheUninterruptedRunWhereverItGoesOn) {
  const std::string other = other_disk_.path();
  const Arguments bf16 = {"--dtype", "bf16"};
  // Its first steps overflow, and the scale grows with every other good one.
  const Arguments fp16 = {
      "--config",
      report_.Write("fp16.json",
                    "{\"train_micro_batch_size_per_gpu\": 1, \"fp16\": "
                    "{\"enabled\": true, \"initial_scale_power\": 19, "
                    "\"hysteresis\": 1, \"loss_scale_window\": 2}}")};
  for (const Variant& variant : std::vector<Variant>{
           {"Same", {}, {}},
           {"OtherBudget", {"--clip", "0"}, {"--memory-budget", "90%"}},
           {"TwoPathsThreads",
            {"--accumulate", "2"},
            {"--nvme-path", other, "--io-engine", "threads"}},
           {"Bf16", bf16, {}},
           {"Bf16AllInMemory",
            bf16,
            {"--memory-budget", "8MiB", "--nvme-path", other}},
           {"Fp16", fp16, {}},
       }) {
    SCOPED_TRACE(variant.name);
    TemporaryDirectory whole, cut;
    ExpectOk(Offloaded(variant.model) + Arguments{"--steps", "7", "--save",
                                                  whole.path(), "--json",
                                                  Json("whole")});
    ExpectOk(Offloaded(variant.model) +
             Arguments{"--steps", "4", "--save", cut.path()});
    ExpectOk(Offloaded(variant.model) + variant.resume +
             Arguments{"--steps", "7", "--resume", cut.path(), "--save",
                       cut.path(), "--save-every", "2", "--json", Json("cut")});
    const nlohmann::json all = Losses("whole"), rest = Losses("cut");
    ASSERT_THAT(all, SizeIs(7));
    ASSERT_THAT(rest, SizeIs(3));
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rest[i], all[4 + i]);
    // Parameters, masters and moments.
    EXPECT_EQ(TensorsIn(whole), TensorsIn(cut));
    EXPECT_THAT(cut.Entries(), SizeIs(3));
    EXPECT_TRUE(disk_.empty());
    EXPECT_TRUE(other_disk_.empty());
  }
}

TEST_F(ResumeTest, RefusesAnotherModelAndWhatMakesNoSenseInOneLine) {
  ExpectOk(Offloaded({"--steps", "2", "--save", Save()}));
  const auto before = save_.Entries();
  const std::string none = other_disk_.path();
  struct Mistake {
    Arguments arguments;
    std::string message;
  };
  for (const Mistake& mistake : std::vector<Mistake>{
           {{"--resume", Save(), "--heads", "2"},
            "the checkpoint is of another model: --heads 1, not 2"},
           {{"--resume", Save(), "--layers", "2"},
            "the checkpoint is of another model: --layers 1, not 2"},
           {{"--resume", Save(), "--dtype", "bf16"},
            "the checkpoint is of another model: --dtype fp32, not bf16"},
           {{"--resume", Save(), "--steps", "2"},
            "is of step 2; --steps 2 leaves nothing to train"},
           {{"--resume", none}, "there is no checkpoint"},
           {{"--resume", none + "/none"}, "ENOENT"},
           {{"--save", Save()}, "has a checkpoint already"},
           {{"--save", none + "/none/deeper"}, "ENOENT"},
           {{"--resume", Save(), "--verify"}, "--verify compares whole runs"},
           {{"--save-every", "2"}, "--save-every needs --save"},
       }) {
    SCOPED_TRACE(mistake.message);
    const ChildResult result =
        RunTrainGpt(Offloaded({"--steps", "3"}) + mistake.arguments);
    EXPECT_THAT(result.exit_code, testing::AnyOf(1, 2));
    EXPECT_THAT(result.errors,
                AllOf(StartsWith("train_gpt: "), HasSubstr(mistake.message)));
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1);
    EXPECT_THAT(result.output, Not(HasSubstr("loss")));
  }
  for (const char* flag : {"--save", "--resume"}) {
    const ChildResult result = RunTrainGpt(Smallest({flag, Save()}));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, HasSubstr("needs --nvme-path"));
  }
  EXPECT_EQ(save_.Entries(), before);
}

TEST_F(ResumeTest, SaysWhatChangesTheLosses) {
  ExpectOk(Offloaded({"--steps", "1", "--save", Save()}));
  const ChildResult result = RunTrainGpt(Offloaded(
      {"--steps", "2", "--resume", Save(), "--seed", "5", "--batch", "2"}));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("--seed is 5, was 1: losses will differ"),
                    HasSubstr("--batch is 2, was 1: losses will differ")));
}

TEST_F(ResumeTest, AnAlteredFileIsRefusedWithItsTensor) {
  ExpectOk(Offloaded({"--steps", "1", "--save", Save()}));
  const std::string path = Save() + "/" + save_.Entries().back();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7e');
  file.close();
  const ChildResult result =
      RunTrainGpt(Offloaded({"--steps", "2", "--resume", Save()}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("tensor '"), HasSubstr(path),
                                   HasSubstr("not what was written")));
  EXPECT_THAT(result.output, Not(HasSubstr("loss")));
}

TEST_F(ResumeTest, ARunThatIsInterruptedSavesWhatItHas) {
  ExpectOk(Offloaded({"--steps", "9", "--json", Json("whole")}));
  {
    ChildProcess run(TrainGpt(Offloaded(
        {"--steps", "100000", "--pace", "5MB,5MB", "--save", Save()})));
    ASSERT_TRUE(run.WaitForOutput("step 3/")) << run.Wait().errors;
    run.Kill(SIGINT);
    const ChildResult& result = run.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("saved step "));
  }
  ChildResult next = RunTrainGpt(
      Offloaded({"--steps", "9", "--resume", Save(), "--json", Json("cut")}));
  if (next.exit_code != 0) {  // the signal came late, after step 9
    EXPECT_THAT(next.errors, HasSubstr("leaves nothing to train"));
    return;
  }
  const nlohmann::json all = Losses("whole"), rest = Losses("cut");
  ASSERT_LE(rest.size(), 6u);
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(rest[i], all[9 - rest.size() + i]);
  }
}

// Takes the rest of a file system, a page at a time.
void TakeAllRoom(const std::string& directory) {
  std::ofstream filler(directory + "/filler", std::ios::app);
  const std::string page(4096, 'x');
  while (filler.write(page.data(), page.size()).flush()) {
  }
}

TEST_F(ResumeTest, AFullDiskEndsTheRunAndTheOldCheckpointGoesOn) {
  TemporaryDirectory small;
  if (!small.MountTmpfs("size=5m")) {
    GTEST_SKIP() << "mounting a small file system is not allowed here";
  }
  const std::string save = small.path() + "/save";
  std::filesystem::create_directory(save);
  const Arguments run = Offloaded({"--steps", "200"});
  ExpectOk(run + Arguments{"--json", Json("whole")});
  {
    // There is room at the start; another program takes it in mid-run, which
    // on this disk is a minute and a half long.
    ChildProcess full(TrainGpt(run + Arguments{"--save", save, "--save-every",
                                               "1", "--pace", "1MB,1MB"}));
    ASSERT_TRUE(full.WaitForOutput("saved step 2")) << full.Wait().errors;
    full.WaitUntil([&] {
      TakeAllRoom(small.path());
      return false;
    });
    EXPECT_EQ(full.Wait().exit_code, 1);
    EXPECT_THAT(full.Wait().errors,
                AllOf(HasSubstr("--save " + save), HasSubstr("ENOSPC")));
  }
  EXPECT_TRUE(disk_.empty());
  std::filesystem::remove(small.path() + "/filler");
  ExpectOk(run + Arguments{"--resume", save, "--json", Json("cut")});
  const nlohmann::json all = Losses("whole"), rest = Losses("cut");
  ASSERT_THAT(all, SizeIs(200));
  ASSERT_GT(rest.size(), 0u);
  ASSERT_LE(rest.size(), 198u);
  for (size_t i = 0; i < rest.size(); ++i) {
    ASSERT_EQ(rest[i], all[all.size() - rest.size() + i]) << i;
  }
}

// How often the tests below kill: each a run of train_gpt and one that goes on.
int Kills() {
  const char* kills = std::getenv("TERRACE_KILLS");
  return kills == nullptr ? 4 : std::atoi(kills);
}

// Killed again and again until it has got to the end.
TEST_F(ResumeTest, ARunThatIsKilledAtAnyTimeGetsToTheSameEnd) {
  const std::random_device::result_type seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string steps = std::to_string(10 + 6 * Kills());
  TemporaryDirectory whole;
  const Arguments run = Offloaded({"--steps", steps, "--save-every", "1"});
  ExpectOk(run + Arguments{"--save", whole.path()});
  int killed = 0;
  for (int runs = 0; killed < Kills() && runs < 20 + Kills(); ++runs) {
    Arguments arguments = run + Arguments{"--save", Save()};
    if (!save_.empty() &&
        std::filesystem::exists(Save() + "/checkpoint.json")) {
      arguments = arguments + Arguments{"--resume", Save()};
    }
    ChildProcess child(TrainGpt(arguments));
    // Anywhere in a step or a save.
    if (!child.WaitForOutput("saved step ")) break;
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(random() % 60'000);
    child.WaitUntil([&] { return std::chrono::steady_clock::now() >= until; });
    child.Kill(SIGKILL);
    const ChildResult& result = child.Wait();
    if (result.signal == SIGKILL) {
      ++killed;
      continue;
    }
    // It got to the end while this process was kept waiting.
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    if (killed > 0) break;
    for (const std::string& name : save_.Entries()) {
      std::filesystem::remove(Save() + "/" + name);
    }
  }
  EXPECT_GT(killed, 0);
  const ChildResult last =
      RunTrainGpt(run + Arguments{"--save", Save(), "--resume", Save()});
  if (last.exit_code != 0) {
    EXPECT_THAT(last.errors, HasSubstr("leaves nothing to train"));
  }
  EXPECT_EQ(TensorsIn(whole), TensorsIn(save_));
  EXPECT_THAT(save_.Entries(), SizeIs(3));
  EXPECT_TRUE(disk_.empty());
}

}  // namespace
}  // namespace train_gpt
