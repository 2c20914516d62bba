"""`pytest --daemon`: the tests once more, with a host's daemon in place of each
directory that state or a model would go to; the bits are to be the same.

What looks at its own directory, or has that fail, is left out: by name, below.
"""

import os

import pytest

from daemons import TERRACED, Daemon
from terrace._base.paths import path_list
from terrace._state.settings import Settings

# By file.
OF_OWN_DIRECTORIES = {
    'test_add_group.py': (
        'test_a_group_that_has_no_room_gives_back_what_it_took',
        'test_state_is_moved_a_range_at_a_time',
    ),
    'test_budget.py': (
        'test_a_path_named_twice_is_refused',
        'test_a_truncated_file_is_a_typed_error',
        'test_files_are_gone_after_close',
        'test_files_are_gone_when_the_optimizer_is',
        'test_files_of_a_killed_job_are_reclaimed',
        'test_memory_is_within_the_budget',
    ),
    'test_budget_share.py': (
        'test_a_share_of_a_small_state_is_all_of_it',
    ),
    'test_deepspeed.py': (
        'test_state_goes_to_the_path_in_the_text',
        'test_the_optimizer_is_the_one_that_is_asked_for',
    ),
    'test_deepspeed_caller.py': (
        'test_the_callers_own_groups_are_stepped',
    ),
    'test_deepspeed_joined.py': (
        'test_of_one_path_it_joins_to_the_bits_of_memory',
    ),
    'test_deepspeed_offload.py': (
        'test_a_list_of_paths_is_striped_over',
        'test_a_path_for_activations_alone',
        'test_cpu_checkpointing_takes_activations_below',
        'test_parameters_on_nvme_train_to_the_bits_of_memory',
    ),
    'test_faults.py': (
        'test_a_disk_that_became_read_only',
        'test_a_disk_that_fills_up_in_mid_run',
        'test_a_disk_without_room_is_told_at_the_start',
        'test_a_start_that_is_killed_keeps_no_later_one_waiting',
    ),
    'test_late_step_faults.py': (
        'test_a_close_after_a_failure_tells',
        'test_a_disk_that_fails',
        'test_a_load_that_is_refused_leaves_the_step',
        'test_flush_tries_again_to_the_same_bits',
        'test_gradients_stay_held',
        'test_step_returns_while_the_disk_is_held',
        'test_what_gives_it_up_leaves_parameters_that_can_be_used',
    ),
    'test_late_step_given_up.py': (
        'test_a_state_dict_tells_of_a_first_step',
        'test_an_ordinary_step_that_is_incomplete_ends_as_one',
        'test_one_that_is_dropped_says_it',
    ),
    'test_late_step_offload_faults.py': (
        'test_an_offload_that_is_closed_first',
        'test_close_raises_it_and_closes',
        'test_flush_tries_again_to_the_same_bits',
        'test_one_that_joined',
        'test_what_gives_it_up_leaves_parameters_that_can_be_used',
        'test_what_was_refused_can_be_used_after_flush_leased_or_not',
    ),
    'test_machine_profile.py': (
        'test_a_path_that_was_not_measured_is_told',
        'test_a_relative_name_holds_when_the_directory_changes',
        'test_a_stale_one_is_told_and_not_used',
        'test_an_optimizer_stays_with_the_one_it_was_made_with',
        'test_one_of_this_machine_and_drive_holds',
        'test_one_that_cannot_be_read_is_an_error',
        'test_one_that_is_gone_costs_no_state',
    ),
    'test_offload_activations_faults.py': (
        'test_a_disk_that_is_gone',
        'test_a_disk_without_room',
        'test_a_tier_without_room',
    ),
    'test_offload_budget.py': (
        'test_a_budget_that_holds_all_opens_no_path',
        'test_a_tenth_where_there_is_a_path_raised_to_what_works',
        'test_what_joins_is_told_with_the_parameters',
    ),
    'test_offload_close.py': (
        'test_a_parameter_that_is_kept_keeps_the_offload',
        'test_close_brings_all_into_ordinary_memory',
    ),
    'test_offload_faults.py': (
        'test_a_disk_that_is_gone',
        'test_a_disk_without_room_is_told_at_the_start',
    ),
    'test_offload_joined.py': (
        'test_it_joins_by_name_and_by_its_parameters',
        'test_what_nobody_closes_ends_with_its_parameters',
    ),
    'test_offload_killed.py': (
        'test_killed_it_leaves_the_next_start_nothing',
    ),
    'test_offload_redone.py': (
        'test_a_backward_that_lacked_activations_is_made_again',
        'test_a_close_that_failed_is_told_and_a_checkpoint_goes_on',
        'test_a_pass_that_failed_is_made_again',
        'test_a_step_that_failed_goes_on_from_a_checkpoint',
        'test_updates_that_failed_are_finished',
    ),
    'test_offload_swapped.py': (
        'test_it_is_closed_with_its_last_parameter_all_the_same',
    ),
    'test_paths.py': (
        'test_several_paths_share_the_state',
    ),
    'test_process.py': (
        'test_data_loader_workers_do_no_harm',
    ),
    'test_ranks_failures.py': (
        'test_a_rank_that_is_gone',
    ),
    'test_scaling.py': (
        'test_an_unfinished_step_keeps_its_scale',
    ),
    'test_state_dict_file.py': (
        'test_bits_are_those_of_copies_in_memory',
        'test_the_tensors_are_their_holders_own',
    ),
    'test_step_in_backward_refusals.py': (
        'test_a_disk_that_fails',
    ),
}
# These are of daemons, or of what is installed.
OTHER_FILES = ('test_daemon.py', 'test_daemon_offload.py', 'test_package.py')


def leave_out(items):
    """Marks what this says nothing about."""
    for item in items:
        name = item.path.name
        left_out = OF_OWN_DIRECTORIES.get(name, ())
        if name in OTHER_FILES or item.originalname in left_out:
            item.add_marker(pytest.mark.skip('of a directory of its own'))


def begin(folder):
    """Starts the daemon; what undoes that."""
    if not os.path.exists(TERRACED):
        raise pytest.UsageError(f'--daemon: there is no {TERRACED}')
    daemon = Daemon(folder, 'quota.user.connections = 4096\n',
                    memory='3GiB', disk='4GiB')
    of_places = Settings.of_places

    def of_daemon(memory_budget, nvme_path, tiers, daemon_asked=None,
                  **others):
        is_moved = (daemon_asked is None and tiers is None
                    and nvme_path is not None
                    and others.get('engine', 'auto') == 'auto'
                    and all(map(os.path.isdir, path_list(nvme_path))))
        if is_moved:
            nvme_path, daemon_asked = None, daemon.socket
        return of_places(memory_budget, nvme_path, tiers, daemon_asked,
                         **others)
    Settings.of_places = staticmethod(of_daemon)

    def end():
        Settings.of_places = staticmethod(of_places)
        assert daemon.end() == 0
    return end
