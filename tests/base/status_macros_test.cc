#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace terrace {
namespace {

absl::Status Twice(absl::Status first, absl::Status second, int* reached) {
  TERRACE_RETURN_IF_ERROR(first);
  ++*reached;
  TERRACE_RETURN_IF_ERROR(second);
  ++*reached;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfErrorGoesOnOnlyWhenOk) {
  int reached = 0;
  EXPECT_TRUE(Twice(absl::OkStatus(), absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 2);
  reached = 0;
  EXPECT_EQ(Twice(absl::OkStatus(), absl::DataLossError("gone"), &reached),
            absl::DataLossError("gone"));
  EXPECT_EQ(reached, 1);
}

absl::StatusOr<std::string> Joined(absl::StatusOr<std::string> a,
                                   absl::StatusOr<std::string> b) {
  TERRACE_ASSIGN_OR_RETURN(const std::string first, std::move(a));
  std::string second;
  TERRACE_ASSIGN_OR_RETURN(second, std::move(b));
  return first + second;
}

TEST(StatusMacrosTest, AssignOrReturnDeclaresOrAssigns) {
  EXPECT_EQ(*Joined("a", "b"), "ab");
  EXPECT_EQ(Joined("a", absl::NotFoundError("b")).status(),
            absl::NotFoundError("b"));
  EXPECT_EQ(Joined(absl::InternalError("a"), "b").status(),
            absl::InternalError("a"));
}

absl::StatusOr<int> Held(absl::StatusOr<std::unique_ptr<int>> source) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<int> held, std::move(source));
  return *held;
}

TEST(StatusMacrosTest, AssignOrReturnMovesWhatCannotBeCopied) {
  EXPECT_EQ(*Held(std::make_unique<int>(7)), 7);
}

}  // namespace
}  // namespace terrace
