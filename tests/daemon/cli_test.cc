// The program `terrace`, as a shell starts it.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/version.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ChildResult Terrace(std::vector<std::string> arguments,
                    const ChildOptions& options = {}) {
  arguments.insert(arguments.begin(), TERRACE_PROGRAM);
  return ChildProcess(arguments, options).Wait();
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin + 1, end - begin);
}

TEST(DoctorTest, AGoodPathIsUsable) {
  const TemporaryDirectory directory;
  const ChildResult result = Terrace({"doctor", directory.path()});
  EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
  EXPECT_THAT(LastLine(result.output), testing::StartsWith("verdict: usable"));
  EXPECT_THAT(result.output, HasSubstr(directory.path()));
  EXPECT_TRUE(directory.empty());
}

TEST(DoctorTest, WithoutAPathItLooksAtTheMachine) {
  const ChildResult result = Terrace({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
  EXPECT_THAT(result.output, HasSubstr("terrace doctor DIRECTORY..."));
}

TEST(DoctorTest, AMissingPathIsNotUsableAndIsMended) {
  const TemporaryDirectory directory;
  const std::string missing = directory.path() + "/missing";
  const ChildResult result = Terrace({"doctor", directory.path(), missing});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("sudo install -d -o \"$USER\" " + missing));
  EXPECT_THAT(LastLine(result.output),
              HasSubstr("not usable, 1 necessary thing missing"));
}

TEST(DoctorTest, APathThatMayNotBeWrittenIsNotUsable) {
  const TemporaryDirectory directory;
  fs::permissions(directory.path(),
                  fs::perms::owner_read | fs::perms::owner_exec);
  ChildOptions options;
  options.respect_permissions = true;
  const ChildResult result = Terrace({"doctor", directory.path()}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("cannot be written: EACCES"));
}

TEST(DoctorTest, ADaemonsConfigurationIsLookedAtOnThisHost) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/terraced.toml";
  const auto doctor = [&](const std::string& text) {
    std::ofstream(file) << "tiers = ['dram=64MiB', 'nvme:" << directory.path()
                        << "=64MiB']\n"
                        << text;
    return Terrace({"doctor", "--config", file});
  };
  const ChildResult good =
      doctor("quota.job.tiers = ['dram=32MiB']\nusers.root.connections = 1\n");
  EXPECT_EQ(good.exit_code, 0) << good.errors << good.output;
  EXPECT_THAT(good.output, HasSubstr("owns       dram=64MiB\n"));
  EXPECT_THAT(good.output, HasSubstr("each user  weight 1\n"
                                     "  job      32 MiB of dram, weight 1\n"
                                     "root       1 connection, weight 1\n"));
  EXPECT_THAT(LastLine(good.output), testing::StartsWith("verdict: usable"));

  const ChildResult wrong = doctor("qouta.job.weight = 1\n");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_EQ(wrong.output, "");
  EXPECT_THAT(wrong.errors, HasSubstr("terrace doctor: " + file +
                                      ":2:1: no such key: qouta"));

  const ChildResult nobody = doctor("[users.no-such-user]\n");
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.errors, HasSubstr(":2:8: this host has no user"));
}

TEST(DoctorTest, WhatNoDaemonStartsWithIsNotUsable) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/terraced.toml";
  const std::string given = directory.Write("given", "");
  std::ofstream(file) << "tiers = ['dram=64MiB', 'nvme:" << given << "=1MiB']";
  const ChildResult result = Terrace({"doctor", "--config", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors,
              HasSubstr(file + ":1:24: nvme:" + given + ": a file or device"));
}

TEST(DoctorTest, ADaemonsQuotasAreInTheJsonToo) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/terraced.toml";
  std::ofstream(file) << "tiers = ['dram=64MiB']\n"
                         "quota.job = {tiers = ['dram=32MiB'], requests = 9}\n"
                         "users.0.jobs.night.weight = 3\n";
  const ChildResult result = Terrace({"doctor", "--config", file, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_TRUE(json["usable"]);
  const nlohmann::json& daemon = json["daemon"];
  EXPECT_EQ(daemon["file"], file);
  EXPECT_EQ(daemon["tiers"], nlohmann::json::array({"dram=64MiB"}));
  EXPECT_EQ(daemon["user"]["tier_bytes"], nlohmann::json::object());
  EXPECT_EQ(daemon["user"]["requests"], nullptr);
  EXPECT_EQ(daemon["job"]["requests"], 9);
  const nlohmann::json& root = daemon["users"]["0"];
  EXPECT_EQ(root["job"]["weight"], 1);
  EXPECT_EQ(root["jobs"]["night"]["weight"], 3);
  EXPECT_EQ(root["jobs"]["night"]["tier_bytes"]["dram"], 32 << 20);
}

TEST(DoctorTest, ADaemonCannotOwnMoreThanThereIs) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/terraced.toml";
  std::ofstream(file) << "tiers = ['dram=64MiB', 'nvme:" << directory.path()
                      << "=100000TiB']\n";
  const ChildResult result = Terrace({"doctor", "--config", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("a budget of "));
  EXPECT_THAT(LastLine(result.output), HasSubstr("not usable"));
}

TEST(DoctorTest, JsonIsOneDocumentAndItsExitCodeIsTheSame) {
  const TemporaryDirectory directory;
  const std::string missing = directory.path() + "/missing";
  for (const auto& [path, code] :
       {std::pair(directory.path(), 0), std::pair(missing, 1)}) {
    const ChildResult result = Terrace({"doctor", path, "--json"});
    EXPECT_EQ(result.exit_code, code);
    const auto json = nlohmann::json::parse(result.output, nullptr, false);
    ASSERT_TRUE(json.is_object()) << result.output;
    EXPECT_EQ(json["usable"], code == 0);
    EXPECT_EQ(json["paths"][0]["path"], path);
  }
}

TEST(DoctorTest, SmallFilesOnlyAreAllowed) {
  const TemporaryDirectory directory;
  ChildOptions options;
  options.largest_file_bytes = 1 << 20;
  const ChildResult result = Terrace({"doctor", directory.path()}, options);
  EXPECT_THAT(result.output, HasSubstr("ulimit -f unlimited"));
}

TEST(DoctorTest, WrongArgumentsAreRefused) {
  const ChildResult result = Terrace({"doctor", "--jsno"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors, HasSubstr("terrace doctor: no option --jsno"));
}

TEST(DoctorTest, TiersAreNamedByTheirTexts) {
  const TemporaryDirectory directory;
  const std::string disk = "nvme:" + directory.path() + "=all";
  ChildResult result =
      Terrace({"doctor", "--json", "--tier", "dram=64MiB", "--tier=" + disk});
  EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
  const auto json = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.output;
  ASSERT_EQ(json["tiers"].size(), 2u);
  EXPECT_EQ(json["tiers"][0]["kind"], "dram");
  EXPECT_EQ(json["tiers"][0]["budget_bytes"], 64 << 20);
  EXPECT_EQ(json["tiers"][1]["name"], "nvme:" + directory.path());
  EXPECT_EQ(json["paths"][0]["path"], directory.path());
  EXPECT_TRUE(directory.empty());
  result = Terrace({"doctor", "--tier", "far:node4000"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("there is no node4000"));
  EXPECT_THAT(result.output, HasSubstr("daxctl list"));
  result = Terrace({"doctor", "--tier", "tape:/dev/st0"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("tier 'tape:/dev/st0'"));
}

TEST(DoctorTest, WithoutATierEachNodeIsShown) {
  const ChildResult result = Terrace({"doctor"});
  EXPECT_THAT(result.output, HasSubstr(":node0"));
  EXPECT_THAT(result.output,
              testing::ContainsRegex("can[ \n]+pin[ \n]+(yes|no)"));
}

TEST(TuneTest, WritesAProfileThatHoldsUntilTheMachineIsAnother) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/profile/machine.json";
  ChildResult result = Terrace({"tune", "--json", "--out", file});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  auto json = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << result.output;
  EXPECT_GT(json["copy_bytes_per_second"], 0);
  EXPECT_EQ(Terrace({"tune", "--check", "--out", file}).exit_code, 0);
  json["kernel"] = "0.1";
  directory.Write("profile/machine.json", json.dump());
  result = Terrace({"tune", "--check", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("stale: the kernel was '0.1'"));
}

TEST(TuneTest, TiersThatCannotBeMeasuredAreNamed) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/machine.json";
  ChildResult result =
      Terrace({"tune", "--tier", "far:node4000", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("tier 'far:node4000': "));
  result = Terrace({"tune", "--tier", "dram=1GiB", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("edges between memory and hbm"));
  result = Terrace({"tune", "--tier", "far", "--out", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(directory.empty());
  ASSERT_EQ(Terrace({"tune", "--out", file}).exit_code, 0);
  result =
      Terrace({"tune", "--check", "--tier", "far:node4000", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("stale: tier 'far:node4000' was not measured"));
}

TEST(TuneTest, WhatCannotBeDoneIsSaid) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/none.json";
  ChildResult result = Terrace({"tune", "--check", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr(file));
  result = Terrace({"tune", "--check", "--json", "--out", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("--check has no JSON"));
  result = Terrace({"tune", directory.path() + "/none", "--out", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("ENOENT"));
  EXPECT_EQ(Terrace({"tune", "--out"}).exit_code, 2);
  EXPECT_TRUE(directory.empty());
}

TEST(TerraceTest, VersionAndHelp) {
  EXPECT_EQ(Terrace({"--version"}).output,
            std::string("terrace ") + kVersion + "\n");
  const ChildResult help = Terrace({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output,
              HasSubstr("doctor [PATH...] [--tier TIER]... [--config FILE] "
                        "[--json]"));
  EXPECT_EQ(Terrace({"doctor", "--help"}).exit_code, 0);
}

TEST(TerraceTest, WithoutASubcommandItSaysWhatThereIs) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"doktor"}}) {
    const ChildResult result = Terrace(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.errors, HasSubstr("usage: terrace SUBCOMMAND"));
  }
}

TEST(BenchTest, BecomesTheProgramBesideIt) {
  const TemporaryDirectory directory;
  const std::string program = directory.path() + "/terrace";
  fs::copy_file(TERRACE_PROGRAM, program);
  const std::string bench = directory.Write(
      "terrace-bench", "#!/bin/sh\necho \"$#:$1:$2\"\nexit 7\n");
  fs::permissions(bench, fs::perms::owner_all);
  const ChildResult result =
      ChildProcess({program, "bench", "--help", "a b"}).Wait();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, "2:--help:a b\n");
}

TEST(BenchTest, WithoutTheProgramItSaysWhereItLooked) {
  const TemporaryDirectory directory;
  const std::string program = directory.path() + "/terrace";
  fs::copy_file(TERRACE_PROGRAM, program);
  const ChildResult result = ChildProcess({program, "bench", "io"}).Wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.errors,
      HasSubstr(fs::canonical(directory.path()).string() + "/terrace-bench: "));
}

}  // namespace
}  // namespace terrace
