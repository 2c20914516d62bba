#include "daemon/server/user_table.h"

#include <string>

#include "gtest/gtest.h"

namespace terrace {
namespace {

UserTable TableOf(const std::string& text) {
  const auto config =
      ParseDaemonConfig("tiers = ['dram=1GiB']\n" + text, "d.toml");
  EXPECT_TRUE(config.ok()) << config.status();
  auto table = UserTable::Make(*config);
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

TEST(UserTableTest, EachUserHasItsOwnLimit) {
  UserTable table =
      TableOf("quota.user.connections = 2\nusers.0.connections = 1\n");
  EXPECT_TRUE(table.AddConnection(0).ok());
  EXPECT_EQ(table.AddConnection(0),
            absl::ResourceExhaustedError(
                "the user 0 has 1 connections, and the limit is 1"));
  EXPECT_TRUE(table.AddConnection(7).ok());
  EXPECT_TRUE(table.AddConnection(7).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.AddConnection(7)));
  EXPECT_EQ(table.All().size(), 2u);
  EXPECT_EQ(table.UseOf(7).connections, 2);
  table.RemoveConnection(7);
  EXPECT_TRUE(table.AddConnection(7).ok());
  for (int i = 0; i < 3; ++i) table.RemoveConnection(7);  // one too many
  EXPECT_EQ(table.UseOf(7).connections, 0);
  EXPECT_EQ(table.All().size(), 1u);
}

TEST(UserTableTest, WhoIsNotLimitedHasTheDefault) {
  UserTable table = TableOf("");
  for (int64_t i = 0; i < UserTable::kConnections; ++i) {
    EXPECT_TRUE(table.AddConnection(7).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(table.AddConnection(7)));
}

TEST(UserTableTest, WhoStandsForAllUnknownOnesIsRefused) {
  UserTable table = TableOf("");
  EXPECT_TRUE(absl::IsPermissionDenied(table.AddConnection(65534)));
}

TEST(UserTableTest, OtherLimitsHoldForWhoComes) {
  UserTable table = TableOf("quota.user.connections = 3\n");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(table.AddConnection(7).ok());
  table.SetLimits(TableOf("quota.user.connections = 2\n"));
  EXPECT_EQ(table.UseOf(7).connections, 3);
  table.RemoveConnection(7);
  EXPECT_FALSE(table.AddConnection(7).ok());
  table.RemoveConnection(7);
  EXPECT_TRUE(table.AddConnection(7).ok());
}

}  // namespace
}  // namespace terrace
