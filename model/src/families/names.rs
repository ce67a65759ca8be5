//! Tensor names in checkpoints.

use crate::role::Role;

/// Names of a role's tensors in most checkpoints; families name those that differ.
pub fn usual(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embed_tokens"],
        Role::AttentionNorm => &["input_layernorm"],
        Role::Query => &["self_attn.q_proj"],
        Role::Key => &["self_attn.k_proj"],
        Role::Value => &["self_attn.v_proj"],
        Role::QueryNorm => &["self_attn.q_norm"],
        Role::KeyNorm => &["self_attn.k_norm"],
        Role::QueryDown
        | Role::QueryUp
        | Role::Latent
        | Role::LatentNorm
        | Role::HeadKey
        | Role::HeadValue => {
            unreachable!("attention is not latent")
        }
        Role::Sinks => &["self_attn.sinks"],
        Role::AttentionOutput => &["self_attn.o_proj"],
        Role::FeedForwardNorm => &["post_attention_layernorm"],
        Role::Router => &["mlp.gate"],
        Role::Gate => &["mlp.gate_proj"],
        Role::Up => &["mlp.up_proj"],
        Role::Down => &["mlp.down_proj"],
        Role::LastNorm => &["model.norm"],
        Role::Head => &["lm_head"],
        Role::AttentionOutputNorm | Role::FeedForwardOutputNorm => {
            unreachable!("what is added is not normalised")
        }
        Role::ExpertGate => &["mlp.experts.{}.gate_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertUp => &["mlp.experts.{}.up_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertDown => &["mlp.experts.{}.down_proj", "mlp.experts.down_proj"],
        Role::RouterCorrection => &["mlp.gate.e_score_correction_bias"],
        Role::SharedGate => &["mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"],
        Role::SharedUp => &["mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"],
        Role::SharedDown => &["mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"],
        Role::SharedRouter => &["mlp.shared_expert_gate"],
    }
}
