#include "bench/rounds.h"

#include "base/status_macros.h"

namespace terrace::bench {

Stopwatch::Stopwatch() : start_(Seconds()), cpu_(OwnCpuSeconds()) {}

Sample Stopwatch::Stop(int64_t bytes) const {
  const double seconds = Seconds() - start_;
  const double cpu = OwnCpuSeconds() - cpu_;
  const auto moved = static_cast<double>(bytes);
  return {moved / (1 << 20) / seconds, cpu * 1e3 / (moved / (1 << 30))};
}

absl::StatusOr<Rounds> Rounds::Run(const std::vector<Contender>& contenders,
                                   int rounds, Gate& gate) {
  Rounds result;
  for (const Contender& contender : contenders) {
    result.names_.push_back(contender.name);
  }
  result.samples_.resize(contenders.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      // Rotated, so that none is always the one that finds a warm machine.
      const size_t which =
          (static_cast<size_t>(round) + turn) % contenders.size();
      Sample sample;
      const auto body = [&]() -> absl::Status {
        TERRACE_ASSIGN_OR_RETURN(sample, contenders[which].run());
        return absl::OkStatus();
      };
      if (round == 0) {
        TERRACE_RETURN_IF_ERROR(body());
        continue;
      }
      TERRACE_RETURN_IF_ERROR(gate.Run(body));
      result.samples_[which].push_back(sample);
      if (contenders[which].keep) contenders[which].keep();
    }
  }
  return result;
}

Spread Rounds::Of(int contender, Figure figure) const {
  std::vector<double> values;
  for (size_t i = 0; i < samples_[contender].size(); ++i) {
    values.push_back(At(contender, i, figure));
  }
  return SpreadOf(values);
}

Spread Rounds::Ratio(int subject, int bound, Figure figure) const {
  std::vector<double> values;
  for (size_t i = 0; i < samples_[subject].size(); ++i) {
    const double of = At(bound, i, figure);
    values.push_back(of > 0 ? At(subject, i, figure) / of : 0);
  }
  return SpreadOf(values);
}

}  // namespace terrace::bench
