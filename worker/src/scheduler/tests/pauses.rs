//! Why a running sequence has no rows to plan.

use super::super::in_flight::Pause;
use super::*;

#[test]
fn every_pause_has_its_reason() {
    let params = SamplingParams { temperature: 1.0, max_tokens: 9, ..SamplingParams::default() };
    let pause = |world: &World| world.scheduler.queues.running[0].pause(world.scheduler.planned_steps + 1);
    let mut world = World::at_depth(2, &roomy(), 64);
    let samples = (0..2).map(|index| NewSample { index, delivered: Vec::new() }).collect();
    world.submit(NewRequest { samples, ..request(1, vec![1; 8], params.clone()) });
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Forking));

    let mut world = World::at_depth(2, &roomy(), 64);
    world.draft(&Answers::default(), 2);
    world.submit(request(1, vec![1; 8], params.clone()));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Verifying));

    let mut world = World::at_depth(2, &roomy(), 64);
    world.submit(request(1, vec![1; 8], SamplingParams { max_tokens: 1, ..params.clone() }));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Ending));

    // A history can end with one unknown token, not with two.
    let mut world = World::at_depth(3, &roomy(), 64);
    world.submit(request(1, vec![1; 8], SamplingParams { frequency_penalty: 0.5, ..params }));
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), None, "the next row's token is carried");
    world.launch(|_| Duration::from_millis(1));
    assert_eq!(pause(&world), Some(Pause::Drawing));
}
