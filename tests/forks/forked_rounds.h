// An operation that is done again and again, each time with a child of this
// process made at another of its system calls, until one ends before: what the
// child has of its parent, and what the parent then has, are to be the same
// wherever it was made.
//
// Without TERRACE_FORKS in the environment most calls are passed over, others
// each time that the test runs.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace terrace {

// What a child does once it has looked at what it has.
enum class Afterlife {
  kEnds,   // gives up its copies, and returns from its main
  kLives,  // until the parent has done and looked at everything
  kWorks,  // first with something of its own, and then as kEnds
};

// What is under test. In the child: true, or a line to standard error.
struct ForkedOperation {
  std::function<void()> prepare = [] {};  // for it; no child is made there
  std::function<void()> run;              // at whose calls they are made
  std::function<void()> look = [] {};     // at what it did, and may do next
  std::function<bool()> is_refused;       // child: each call on its copies
  std::function<void()> give_up = [] {};  // child: its copies
  std::function<bool()> work = [] { return true; };  // child: of its own
  // How many calls it makes differs, as what goes in one call does.
  bool calls_vary = false;
};

class ForkedRounds : public testing::Test {
 protected:
  void SetUp() override;

  void Do(const ForkedOperation& operation);

 private:
  // The calls that it makes.
  int64_t CountCalls(const ForkedOperation& operation);
  // False: it ended before that call.
  bool DoOnce(const ForkedOperation& operation, int64_t call,
              Afterlife afterlife);
  // In the child.
  bool HasNothingOfItsParent() const;
  int Live(const ForkedOperation& operation, Afterlife afterlife, int told);

  std::set<std::string> descriptors_;  // before there was anything to test
};

}  // namespace terrace
